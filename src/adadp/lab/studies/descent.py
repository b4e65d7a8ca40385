"""Walking down a test function with noise: Algorithm 1 of Xu et al. 2020 and DP-SGD, for a gradient that is known.

There are no records here and no privacy: the gradient is a formula, the noise is what a private run would add. What is
studied is how far the noise leads a path away from the one without it.

    method   noise                                                     step
    dpsgd    clip to norm C, noise C sigma*                            -rate g~
    adal     the same                                                  -adaptive_rate g~ / sqrt(E + eps0)
    adadp    where the gate Var[sqrt(E')] > G is open: clip to the     the same as adal
             box s_i = beta sqrt(E'_i), noise sigma* sqrt(m) s_i;
             otherwise as dpsgd

    E  <- (1 - gamma) E + gamma g~^2          of the noisy gradient g~, gamma = 0.1
    E' <- gamma' E' + (1 - gamma') g^2        of the gradient itself, gamma' = 0.9

``adadp`` against ``adal`` is what the noise rule does, ``adal`` against ``dpsgd`` what the step rule does. Both noises
are as private as sigma* by Lemma 1, for bounds that do not depend on data: sum s_i^2 / sigma_i^2 = C^2 / (C sigma*)^2 =
1/sigma*^2. In ADADP as published they do depend on it (E' is made of raw gradients), so it is not private.

    case                                      answer
    noise of zeros                            the path without noise; clipping and gate stay
    E' = 0 (first step), or equal in both     the gate is closed: global clip and global noise
    a coordinate whose gradient was always 0  with an open gate s_i = sigma_i = 0: it is released as exactly 0
    a gradient of 0                           stays 0 under either clip; with noise of zeros nothing moves
    a start or rate so large that numbers     refused
    overflow
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from adadp import checks
from adadp.errors import InputError
from adadp.lab.studies.functions import Array, Landscape

GAMMA = 0.1
GAMMA_PRIME = 0.9
GATE = 1e-6
EPS0 = 1e-8
"""The smoothing term of the adaptive rate. The paper prints gamma, gamma' and G, and no value for this one."""


class Method(Enum):
    """Which noise and which step."""

    ADADP = "adadp"
    ADAL = "adal"
    DPSGD = "dpsgd"


@dataclass(frozen=True)
class Settings:
    """The constants of a walk. The paper prints ``beta`` and ``steps`` for its figure 1, and none of the others.

    ``noise_multiplier`` is the one of its example to Lemma 1, ``clip_norm`` the one of its experiments on MNIST. Of the
    rates 1, 2 and 5 times powers of ten, those here bring the paths of dpsgd and adadp *without* noise closest to
    Beale's minimum.
    """

    noise_multiplier: float = 1.0
    clip_norm: float = 4.0
    rate: float = 0.05
    adaptive_rate: float = 0.02
    beta: float = 1.5
    steps: int = 150

    def __post_init__(self) -> None:
        checks.non_negative(
            "noise_multiplier",
            self.noise_multiplier,
            why="It is the standard deviation of the noise over the bound.",
        )
        for name in ("clip_norm", "rate", "adaptive_rate", "beta"):
            checks.positive(name, getattr(self, name))
        checks.count("steps", self.steps)


def walk(landscape: Landscape, method: Method, settings: Settings, noise: Array) -> Array:
    """The points after each step, (steps, runs, 2), for standard normal ``noise`` of that shape."""
    if noise.ndim != 3 or noise.shape[::2] != (settings.steps, 2):
        raise InputError(
            f"noise must have the shape ({settings.steps}, runs, 2), got {noise.shape}.",
            why="Every step of every run draws one number per coordinate.",
            fix="Draw it for these settings.",
        )
    points = np.broadcast_to(np.asarray(landscape.start, dtype=np.float64), noise.shape[1:])
    squares_noisy = np.zeros(noise.shape[1:])
    squares_raw = np.zeros(noise.shape[1:])
    path = np.empty(noise.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        for step, draws in enumerate(noise):
            gradient = landscape.gradient(points)
            noisy = _global_noise(gradient, draws, settings)
            if method is Method.ADADP:
                is_open = np.sqrt(squares_raw).var(axis=1, keepdims=True) > GATE
                noisy = np.where(is_open, _local_noise(gradient, squares_raw, draws, settings), noisy)
            squares_noisy = (1 - GAMMA) * squares_noisy + GAMMA * noisy**2
            squares_raw = GAMMA_PRIME * squares_raw + (1 - GAMMA_PRIME) * gradient**2
            if method is Method.DPSGD:
                points = points - settings.rate * noisy
            else:
                points = points - settings.adaptive_rate * noisy / np.sqrt(squares_noisy + EPS0)
            path[step] = points
    if not np.isfinite(path).all():
        raise InputError(
            f"A path of {method.value} on {landscape.name} from {landscape.start} left the range of numbers.",
            why="The distance between paths would not be a number.",
            fix="Use a smaller rate, less noise, or a start nearer to the minimum.",
        )
    return path


def walk_without_noise(landscape: Landscape, method: Method, settings: Settings) -> Array:
    """The path of the same method from the same start with the same settings and no noise, (steps, 1, 2)."""
    return walk(landscape, method, settings, np.zeros((settings.steps, 1, 2)))


def distance(path: Array, other: Array) -> Array:
    """D(P, Q) of the paper for each run: the mean over the steps of |p_i - q_i|."""
    apart: Array = np.linalg.norm(path - other, axis=-1).mean(axis=0)
    return apart


def _global_noise(gradient: Array, draws: Array, settings: Settings) -> Array:
    """Lines 16 and 18: the norm clipped to C, noise C sigma* on every coordinate."""
    norm = np.linalg.norm(gradient, axis=1, keepdims=True)
    noisy: Array = (
        gradient / np.maximum(1, norm / settings.clip_norm) + settings.clip_norm * settings.noise_multiplier * draws
    )
    return noisy


def _local_noise(gradient: Array, squares: Array, draws: Array, settings: Settings) -> Array:
    """Lines 9 to 13: every coordinate clipped to its s_i, noise proportional to it."""
    bound = settings.beta * np.sqrt(squares)
    std = settings.noise_multiplier * np.sqrt(gradient.shape[1]) * bound
    noisy: Array = np.clip(gradient, -bound, bound) + std * draws
    return noisy
