"""``python -m adadp`` is the ``adadp`` command."""

from adadp.app.cli import main

if __name__ == "__main__":
    main(prog_name="adadp")
