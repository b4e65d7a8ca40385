"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says something about the machine's other work, not about the code.
settings.register_profile("adadp", deadline=None)
settings.load_profile("adadp")
