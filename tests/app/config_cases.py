"""What the tests of config share."""

from __future__ import annotations

GOOD = {"data": "mnist", "epsilon": 2.0, "delta": 1e-5}


NOISY = "validation:s0=10,k=0.7,look=20"
