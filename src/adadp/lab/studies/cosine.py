"""Which noise turns a query least: the worked example to Lemma 1 of Xu et al. 2020, recomputed.

Lemma 1: noise N(0, sigma_i^2) on coordinate i, whose sensitivity is s_i, is as private as sigma* on a query of
sensitivity 1 if sum s_i^2 / sigma_i^2 <= 1/sigma*^2. The example has s = (12, 6), a query f = (10, 5) and sigma* = 1,
and measures a choice of noise by the mean cosine similarity of f and f + noise. The paper prints 0.52 for noise in
proportion to s, 0.36 for equal noise and 0.28 for inverse proportion, and concludes that noise should follow the
sensitivity. The numbers do not come out, and neither does their order.

The mean is computed twice: by drawing, as the paper does, with a standard error; and as an integral. With mu_i = f_i /
sigma_i and u a unit vector, the direction of mu + N(0, I) has the density (Mardia and Jupp 2000)

    (exp(-|mu|^2/2) + sqrt(2 pi) B Phi(B) exp((B^2 - |mu|^2)/2)) / (2 pi),    B = mu . u

and the cosine depends on that direction alone. The trapezoidal rule on a circle converges geometrically.

    case                                answer
    no noise at all                     sampled: exactly 1
    f = (0, 0)                          refused: it has no direction
    s_i = 0, or sigma_i = 0 as a choice refused: one coordinate is not part of the trade-off
    noise 1e5 times smaller than f, or  the integral refuses: its integrand is narrower than its nodes
    than the noise beside it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from adadp import checks
from adadp.errors import InputError
from adadp.lab.studies.functions import Array
from adadp.randomness import SeededSource

Pair = tuple[float, float]

SENSITIVITY: Pair = (12.0, 6.0)
QUERY: Pair = (10.0, 5.0)
PRINTED: dict[Pair, float] = {(17.0, 8.5): 0.52, (13.5, 13.5): 0.36, (12.4, 24.8): 0.28}
"""The paper's choices of noise for ``SENSITIVITY`` and ``QUERY``, and the similarities it prints."""

_MOST_NODES = 2**20
_SCANNED = 241


@dataclass(frozen=True)
class Choice:
    """One choice of noise: what it costs by Lemma 1 and how well it keeps the direction of the query."""

    noise: Pair
    privacy_sum: float
    """sum s_i^2 / sigma_i^2."""
    allowed: bool
    """Whether that is at most 1/sigma*^2."""
    sampled: float
    error: float
    """Standard error of ``sampled``."""
    exact: float
    printed: float | None

    @property
    def sigma_star(self) -> float:
        """The sigma* it is exactly as private as."""
        return 1 / math.sqrt(self.privacy_sum)


@dataclass(frozen=True)
class Kept:
    """Noise on the constraint sum s_i^2 / sigma_i^2 = 1/sigma*^2, by its ratio sigma_1/sigma_2."""

    ratio: float
    noise: Pair
    similarity: float


@dataclass(frozen=True)
class CosineStudy:
    """The choices as asked, and what the whole constraint offers."""

    sensitivity: Pair
    query: Pair
    sigma_star: float
    draws: int
    choices: tuple[Choice, ...]
    curve: tuple[Kept, ...]
    equal: Kept
    proportional: Kept
    best: Kept

    def to_json(self) -> dict[str, object]:
        """Everything, the curve included, for files and programs."""
        choices = [asdict(choice) | {"sigma_star": choice.sigma_star} for choice in self.choices]
        return asdict(self) | {"choices": choices}


def study_cosine(
    choices: Sequence[Pair] = tuple(PRINTED),
    *,
    sensitivity: Pair = SENSITIVITY,
    query: Pair = QUERY,
    sigma_star: float = 1.0,
    draws: int = 200_000,
    seed: int = 0,
) -> CosineStudy:
    """Measure every choice, and scan the constraint for the ratio that keeps the direction of the query best."""
    sensitivity = _positive_pair("sensitivity", sensitivity)
    sigma_star = checks.positive("sigma_star", sigma_star)
    source = SeededSource(seed)
    printed = PRINTED if (sensitivity, query) == (SENSITIVITY, QUERY) else {}
    measured = []
    for place, choice in enumerate(choices):
        noise = _positive_pair("noise", choice)
        sampled, error = sampled_similarity(query, noise, draws=draws, source=source, step=place)
        spent = privacy_sum(sensitivity, noise)
        allowed = spent <= sigma_star**-2
        exact = similarity(query, noise)
        measured.append(Choice(noise, spent, allowed, sampled, error, exact, printed.get(noise)))

    def kept(ratio: float) -> Kept:
        noise = on_constraint(sensitivity, sigma_star, ratio)
        return Kept(ratio, noise, similarity(query, noise))

    proportional = sensitivity[0] / sensitivity[1]
    ends = min(1.0, proportional) / 20, max(1.0, proportional) * 20
    curve = tuple(kept(float(ratio)) for ratio in np.geomspace(*ends, _SCANNED))
    return CosineStudy(
        sensitivity=sensitivity,
        query=query,
        sigma_star=sigma_star,
        draws=draws,
        choices=tuple(measured),
        curve=curve,
        equal=kept(1.0),
        proportional=kept(proportional),
        best=_best(curve, kept),
    )


def privacy_sum(sensitivity: Pair, noise: Pair) -> float:
    """Sum s_i^2 / sigma_i^2 of Lemma 1: 1/sigma*^2 for the sigma* this noise is as private as."""
    return math.fsum((s / each) ** 2 for s, each in zip(sensitivity, noise, strict=True))


def on_constraint(sensitivity: Pair, sigma_star: float, ratio: float) -> Pair:
    """The noise with sigma_1/sigma_2 = ``ratio`` that is exactly as private as ``sigma_star``."""
    second = sigma_star * math.hypot(sensitivity[0] / ratio, sensitivity[1])
    return ratio * second, second


def sampled_similarity(
    query: Pair, noise: Pair, *, draws: int, source: SeededSource, step: int = 0
) -> tuple[float, float]:
    """The mean cosine similarity of ``query`` and ``query`` + noise over ``draws``, and its standard error."""
    direction = _direction(query)
    draws = checks.count("draws", draws, minimum=2, why="The standard error needs two.")
    normals = source.normal(2 * draws, purpose="study of cosine similarity", step=step).numpy().reshape(draws, 2)
    noisy = np.asarray(query) + np.asarray(noise) * normals
    cosines = noisy @ direction / np.linalg.norm(noisy, axis=1)
    return float(cosines.mean()), float(cosines.std(ddof=1) / math.sqrt(draws))


def similarity(query: Pair, noise: Pair) -> float:
    """The mean cosine similarity of ``query`` and ``query`` + noise, as an integral, to about ten digits."""
    direction = _direction(query)
    scale = np.asarray(_positive_pair("noise", noise))
    mean = np.asarray(query) / scale
    nodes, last = 256, math.inf
    while nodes <= _MOST_NODES:
        angle = np.arange(nodes) * (2 * math.pi / nodes)
        unit = np.stack([np.cos(angle), np.sin(angle)])
        weights = _direction_density(mean, unit) * (2 * math.pi / nodes)
        noisy = scale[:, np.newaxis] * unit
        now = float(weights @ (direction @ noisy / np.linalg.norm(noisy, axis=0)))
        if abs(weights.sum() - 1) < 1e-10 and abs(now - last) < 1e-10:
            return now
        nodes, last = 2 * nodes, now
    raise InputError(
        f"The similarity of {query} under noise {noise} cannot be integrated.",
        why="Some noise is so small beside the query or the other noise that directions concentrate in a tiny angle.",
        fix="Use numbers within a factor of about 1e4 of one another.",
    )


def _direction_density(mean: Array, unit: Array) -> Array:
    """The density over angles of the direction of ``mean`` + N(0, I), at the columns of ``unit``."""
    along = mean @ unit
    square = float(mean @ mean)
    far = math.sqrt(2 * math.pi) * along * ndtr(along) * np.exp((along**2 - square) / 2)
    density: Array = (math.exp(-square / 2) + far) / (2 * math.pi)
    return density


def _best(curve: Sequence[Kept], kept: Callable[[float], Kept]) -> Kept:
    """The highest point of the scan, improved between its neighbours."""
    place = max(range(len(curve)), key=lambda k: curve[k].similarity)
    between = math.log(curve[max(place - 1, 0)].ratio), math.log(curve[min(place + 1, len(curve) - 1)].ratio)
    found = minimize_scalar(lambda x: -kept(math.exp(x)).similarity, bounds=between, method="bounded")
    return max(curve[place], kept(math.exp(found.x)), key=lambda each: each.similarity)


def _direction(query: Pair) -> Array:
    """``query`` as a unit vector."""
    length = math.hypot(*query)
    if not 0 < length < math.inf:
        raise InputError(
            f"query must be finite and not zero, got {query}.",
            why="A cosine compares directions.",
            fix="Pass two finite numbers that are not both 0.",
        )
    return np.asarray(query, dtype=np.float64) / length


def _positive_pair(name: str, pair: Pair) -> Pair:
    first, second = pair
    return checks.positive(f"{name}_1", first), checks.positive(f"{name}_2", second)
