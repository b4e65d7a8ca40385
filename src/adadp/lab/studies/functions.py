"""Test functions of optimisation in the plane: value, gradient, minima, and where a path starts.

Xu et al. 2020 show the paths of ADADP and DP-SGD on the Beale function and speak of "all widely used test functions".
Which ones, and from where, is not printed. Here stand ten that are in every collection (such as that of Surjanovic and
Bingham), and Beale's as the paper prints it. Beale and Rosenbrock start where Moré, Garbow and Hillstrom 1981 start
them; the others at a round point, at most a few units from a minimum, where the two coordinates of the gradient differ.

    point                  value and gradient
    an array (..., 2)      arrays (...) and (..., 2): many points at once
    the origin of ackley   gradient 0, the middle of the cone, though it has none there

``beale-printed`` has exponent 3 on its last term. It has no minimum: the cube falls without end. Its stationary point
(3, 0.5), where all three terms vanish, takes the place of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adadp.errors import InputError

Array = npt.NDArray[np.float64]
Point = tuple[float, float]


@dataclass(frozen=True)
class Landscape:
    """A function of the plane to walk down. ``value_of`` and ``gradient_of`` take the coordinates x and y as arrays."""

    name: str
    value_of: Callable[[Array, Array], Array]
    gradient_of: Callable[[Array, Array], tuple[Array, Array]]
    start: Point
    minima: tuple[Point, ...]
    """Where the function is least, or what ``goal`` says instead."""
    lowest: float = 0.0
    """Its value there."""
    goal: str = "minimum"
    """What kind of points ``minima`` are."""

    def value(self, points: Array) -> Array:
        return self.value_of(points[..., 0], points[..., 1])

    def gradient(self, points: Array) -> Array:
        return np.stack(self.gradient_of(points[..., 0], points[..., 1]), axis=-1)

    def to_minimum(self, points: Array) -> Array:
        """The distance of each point to the nearest minimum."""
        apart = np.linalg.norm(points[..., np.newaxis, :] - np.asarray(self.minima, dtype=np.float64), axis=-1)
        nearest: Array = apart.min(axis=-1)
        return nearest


def _beale_terms(x: Array, y: Array) -> tuple[Array, Array, Array]:
    return 1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3


def _beale(power: int) -> Callable[[Array, Array], Array]:
    def value(x: Array, y: Array) -> Array:
        a, b, c = _beale_terms(x, y)
        return a**2 + b**2 + c**power

    return value


def _beale_gradient(power: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    def gradient(x: Array, y: Array) -> tuple[Array, Array]:
        a, b, c = _beale_terms(x, y)
        slope = power * c ** (power - 1)
        along_x = 2 * a * (y - 1) + 2 * b * (y**2 - 1) + slope * (y**3 - 1)
        return along_x, 2 * a * x + 4 * b * x * y + 3 * slope * x * y**2

    return gradient


def _ackley(x: Array, y: Array) -> Array:
    cone = -20 * np.exp(-0.2 * np.sqrt((x**2 + y**2) / 2))
    waves = -np.exp((np.cos(2 * np.pi * x) + np.cos(2 * np.pi * y)) / 2)
    total: Array = cone + waves + np.e + 20
    return total


def _ackley_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    radius = np.sqrt((x**2 + y**2) / 2)
    cone = 2 * np.exp(-0.2 * radius) / np.where(radius == 0, 1, radius)
    waves = np.pi * np.exp((np.cos(2 * np.pi * x) + np.cos(2 * np.pi * y)) / 2)
    return cone * x + waves * np.sin(2 * np.pi * x), cone * y + waves * np.sin(2 * np.pi * y)


def _goldstein_price(x: Array, y: Array) -> Array:
    first = 1 + (x + y + 1) ** 2 * (19 - 14 * x + 3 * x**2 - 14 * y + 6 * x * y + 3 * y**2)
    second = 30 + (2 * x - 3 * y) ** 2 * (18 - 32 * x + 12 * x**2 + 48 * y - 36 * x * y + 27 * y**2)
    return first * second


def _goldstein_price_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    a, b = x + y + 1, 2 * x - 3 * y
    p = 19 - 14 * x + 3 * x**2 - 14 * y + 6 * x * y + 3 * y**2
    q = 18 - 32 * x + 12 * x**2 + 48 * y - 36 * x * y + 27 * y**2
    first, second = 1 + a**2 * p, 30 + b**2 * q
    first_slope = 2 * a * p + a**2 * (6 * x + 6 * y - 14)
    along_x = first_slope * second + first * (4 * b * q + b**2 * (24 * x - 36 * y - 32))
    along_y = first_slope * second + first * (-6 * b * q + b**2 * (54 * y - 36 * x + 48))
    return along_x, along_y


_HIMMELBLAU_MINIMA = (
    (3.0, 2.0),
    (-2.8051180869527, 3.1313125182506),
    (-3.7793102533778, -3.2831859912861),
    (3.5844283403305, -1.8481265269645),
)

LANDSCAPES: dict[str, Landscape] = {
    each.name: each
    for each in (
        Landscape("beale", _beale(2), _beale_gradient(2), (1.0, 1.0), ((3.0, 0.5),)),
        Landscape("beale-printed", _beale(3), _beale_gradient(3), (1.0, 1.0), ((3.0, 0.5),), goal="stationary point"),
        Landscape(
            "rosenbrock",
            lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
            lambda x, y: (-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)),
            (-1.2, 1.0),
            ((1.0, 1.0),),
        ),
        Landscape(
            "booth",
            lambda x, y: (x + 2 * y - 7) ** 2 + (2 * x + y - 5) ** 2,
            lambda x, y: (10 * x + 8 * y - 34, 8 * x + 10 * y - 38),
            (-2.0, 0.0),
            ((1.0, 3.0),),
        ),
        Landscape(
            "himmelblau",
            lambda x, y: (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2,
            lambda x, y: (
                4 * (x**2 + y - 11) * x + 2 * (x + y**2 - 7),
                2 * (x**2 + y - 11) + 4 * (x + y**2 - 7) * y,
            ),
            (0.0, -1.0),
            _HIMMELBLAU_MINIMA,
        ),
        Landscape(
            "three-hump-camel",
            lambda x, y: 2 * x**2 - 1.05 * x**4 + x**6 / 6 + x * y + y**2,
            lambda x, y: (4 * x - 4.2 * x**3 + x**5 + y, x + 2 * y),
            (1.0, 2.0),
            ((0.0, 0.0),),
        ),
        Landscape(
            "matyas",
            lambda x, y: 0.26 * (x**2 + y**2) - 0.48 * x * y,
            lambda x, y: (0.52 * x - 0.48 * y, 0.52 * y - 0.48 * x),
            (3.0, 1.0),
            ((0.0, 0.0),),
        ),
        Landscape(
            "sphere",
            lambda x, y: x**2 + y**2,
            lambda x, y: (2 * x, 2 * y),
            (3.0, 1.0),
            ((0.0, 0.0),),
        ),
        Landscape("ackley", _ackley, _ackley_gradient, (2.5, 1.5), ((0.0, 0.0),)),
        Landscape("goldstein-price", _goldstein_price, _goldstein_price_gradient, (1.0, 0.5), ((0.0, -1.0),), 3.0),
        Landscape(
            "styblinski-tang",
            lambda x, y: (x**4 - 16 * x**2 + 5 * x + y**4 - 16 * y**2 + 5 * y) / 2,
            lambda x, y: (2 * x**3 - 16 * x + 2.5, 2 * y**3 - 16 * y + 2.5),
            (-1.0, 0.0),
            ((-2.9035340277711, -2.9035340277711),),
            -78.3323314075428,
        ),
    )
}


def landscape(name: str) -> Landscape:
    """The test function called ``name``."""
    if name not in LANDSCAPES:
        raise InputError(f"Unknown test function {name!r}.", fix=f"Use one of: {', '.join(LANDSCAPES)}.")
    return LANDSCAPES[name]
