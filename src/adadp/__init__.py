"""AdaDP: train PyTorch models under differential privacy, with a guarantee that is true."""

__version__ = "0.1.0"
