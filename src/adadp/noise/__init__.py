"""The one crossing of the trust line: sums of what records contributed go in, noisy values that are public come out."""

from adadp.noise.gaussian import GaussianMechanism

__all__ = ["GaussianMechanism"]
