"""The one crossing of the trust line: sums and losses of records go in, noisy values that are public come out."""

from adadp.noise.ahead import NormalsAhead
from adadp.noise.choice import choose_least, perturbed_least
from adadp.noise.gaussian import GaussianMechanism, draw_ahead, grid_of

__all__ = ["GaussianMechanism", "NormalsAhead", "choose_least", "draw_ahead", "grid_of", "perturbed_least"]
