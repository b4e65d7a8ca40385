"""The ``adadp`` command."""
