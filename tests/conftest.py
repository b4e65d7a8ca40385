"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says something about the machine's other work, not about the code.
# The same examples every time: a change is judged by what it changed. `make fuzz` draws new ones.
settings.register_profile("adadp", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("adadp")
