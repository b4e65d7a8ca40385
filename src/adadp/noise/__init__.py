"""The one crossing of the trust line: sums and losses of records go in, noisy values that are public come out."""

from adadp.noise.choice import choose_least, perturbed_least
from adadp.noise.gaussian import GaussianMechanism, grid_of

__all__ = ["GaussianMechanism", "choose_least", "grid_of", "perturbed_least"]
