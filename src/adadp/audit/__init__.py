"""Does the code do what the certificate says? Runs replayed on neighbouring data, release by release."""

from adadp.audit.replay import Distance, neighbour_replay

__all__ = ["Distance", "neighbour_replay"]
