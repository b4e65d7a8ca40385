"""Normals from words: their formula to 60 digits, the same bits from numpy and from compiled code, and fallbacks."""

from __future__ import annotations

import math
import shutil
import subprocess

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import kstest

from adadp import normals
from adadp.app import compiled_normals
from adadp.normals import COMPILE, compiled, in_numpy, normals_of
from adadp.randomness import SecureSource, SeededSource

POWERS = np.uint64(1) << np.arange(64, dtype=np.uint64)
EDGES = np.concatenate([POWERS, POWERS - np.uint64(1), ~POWERS])
GOLDEN = ["-0x1.8d5120c88fa86p-1", "0x1.4d6cb91cb25b8p+0", "0x1.214d44d542810p-2", "-0x1.8243f83123a9ap-3"]
has_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def fresh():
    """Nothing compiled before or after."""
    compiled.cache_clear()
    yield
    compiled.cache_clear()


def words(count: int, seed: int) -> np.ndarray:
    return np.random.SFC64(seed).random_raw(count)


def pairs(i: np.ndarray, j: np.ndarray, transform=in_numpy) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.empty(len(i)), np.empty(len(i))
    transform(i.view(np.int64), j.view(np.int64), x, y)
    return x, y


def test_pairs_follow_the_formula():
    """Against 60 digits; what rounding may do is stated in the module."""
    i, j = np.concatenate([EDGES, words(1500, 1)]), np.concatenate([words(1500, 2), EDGES[::-1]])
    x, y = pairs(i, j)
    with mpmath.workdps(60):
        for first, second, cosine, sine in zip(i.view(np.int64).tolist(), j.view(np.int64).tolist(), x, y, strict=True):
            shifted = mpmath.mpf(float(first) + 0.5)  # a double: the 53 bits that u keeps
            assert abs(shifted - first - 0.5) <= abs(shifted) * 2.0**-53
            radius = mpmath.sign(shifted) * mpmath.sqrt(-2 * mpmath.log(abs(shifted) / 2**63))
            angle = mpmath.pi * second / 2**64
            for found, exact in ((cosine, radius * mpmath.cos(angle)), (sine, radius * mpmath.sin(angle))):
                assert abs(mpmath.mpf(found) - exact) <= abs(radius) * 2.0**-50
            length = mpmath.sqrt(mpmath.mpf(cosine) ** 2 + mpmath.mpf(sine) ** 2)
            assert abs(length - abs(radius)) <= abs(radius) * 2.0**-50


def test_the_radius_is_right_to_the_last_bits():
    """At the angle 0 a normal is the radius itself, also of the smallest u and of those just below 1."""
    i = np.concatenate([EDGES, words(3000, 3)])
    x, y = pairs(i, np.zeros_like(i))
    assert not y.any()
    with mpmath.workdps(60):
        for first, found in zip(i.view(np.int64).tolist(), x, strict=True):
            exact = mpmath.sqrt(-2 * mpmath.log(abs(mpmath.mpf(float(first) + 0.5)) / 2**63))
            assert abs(abs(mpmath.mpf(found)) - exact) <= exact * 2.0**-51
            assert (found > 0) == (first >= 0) or found == 0


def test_the_ends():
    """The smallest u is 2**-64, the largest is 1; the angles reach a quarter circle on both sides."""
    smallest, largest, half = np.uint64(0), np.uint64(2**63), np.uint64(2**63)
    i = np.array([smallest, ~smallest, largest, smallest], dtype=np.uint64)
    x, y = pairs(i, np.array([0, 0, 0, half], dtype=np.uint64))
    assert x[0] == pytest.approx(math.sqrt(128 * math.log(2)), rel=1e-15)
    assert x[1] == -x[0]
    assert x[2] == y[2] == 0
    assert y[3] == -x[0]
    assert abs(x[3]) < 1e-14


@has_compiler
def test_compiled_code_makes_the_same_bits():
    transform = compiled()
    assert transform is not None
    for count in (0, 1, 7, 1001, normals._IN_CACHE + 3):
        i, j = words(count, 4), words(count, 5)
        for one, other in zip(pairs(i, j), pairs(i, j, transform), strict=True):
            assert np.array_equal(one.view(np.int64), other.view(np.int64))
    i, j = (each.reshape(-1) for each in np.meshgrid(EDGES, EDGES))
    for one, other in zip(pairs(i, j), pairs(i, j, transform), strict=True):
        assert np.array_equal(one.view(np.int64), other.view(np.int64))


def test_the_bits_of_a_seed_never_change():
    """Golden: on every processor, compiled or not."""
    found = SeededSource(7).normal(4, purpose="noise", step=5)
    assert [value.hex() for value in found.tolist()] == GOLDEN


@has_compiler
def test_many_normals_are_made_by_compiled_code(monkeypatch, fresh):
    calls = []
    transform = compiled()
    monkeypatch.setattr(normals, "compiled", lambda: lambda *arrays: calls.append(1) or transform(*arrays))
    many, few = words(normals._MANY, 6), words(normals._MANY - 2, 6)
    by_default = normals_of(many)
    normals_of(few)
    assert calls == [1]
    monkeypatch.setenv(COMPILE, "1")
    normals_of(few)
    assert calls == [1, 1]
    monkeypatch.setenv(COMPILE, "0")
    assert np.array_equal(normals_of(many), by_default)
    assert calls == [1, 1]


def refused(*_, **__):
    raise OSError("not permitted")


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (compiled_normals.shutil, "which", lambda _: None),
        (compiled_normals.shutil, "which", lambda _: "/no/such/compiler"),
        (compiled_normals.subprocess, "run", refused),
        (compiled_normals.ctypes, "CDLL", refused),
    ],
    ids=["none on the path", "gone", "no process may be started", "no library may be loaded"],
)
def test_without_a_compiler_the_bits_are_the_same(owner, name, broken, monkeypatch, fresh):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(owner, name, broken)
    assert compiled() is None
    many = words(normals._MANY, 8)
    found = normals_of(many)
    monkeypatch.undo()
    assert np.array_equal(found, normals_of(many))


@has_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("sine * cosine * 2.0", "sine * cosine * 2.0000000000000004"),
        ("+ 0.5;", "+ 0.25;"),
        ("copysign(sqrt(square), shifted)", "sqrt(square)"),
        ("(63 - exponent)", "(exponent > 62 ? 1 : 63 - exponent)"),
        ("}\n}", "}}}"),
    ],
    ids=["a last bit", "edges only", "signs", "u near 1", "does not compile"],
)
def test_compiled_code_that_makes_other_bits_is_not_used(right, wrong, monkeypatch, fresh):
    assert right in compiled_normals._SOURCE
    monkeypatch.setattr(compiled_normals, "_SOURCE", compiled_normals._SOURCE.replace(right, wrong))
    assert compiled() is None


@has_compiler
def test_fused_products_would_be_noticed(monkeypatch, fresh):
    """Why the option against them is there: they round in another way, on processors that have them."""
    found = subprocess.run

    def fused(command, **options):
        return found([part.replace("contract=off", "contract=fast") for part in command], **options)

    plain = compiled()
    compiled.cache_clear()
    monkeypatch.setattr(compiled_normals.subprocess, "run", fused)
    other = compiled()
    assert plain is not None
    if other is not None:  # a processor without fused products
        assert np.array_equal(*(pairs(words(999, 1), words(999, 2), each)[0] for each in (plain, other)))


@pytest.mark.statistical
@pytest.mark.parametrize("compiling", ["0", "1"])
@pytest.mark.parametrize("source", [SeededSource(11), SecureSource()], ids=["seeded", "secure"])
def test_normals_are_normal(source, compiling, monkeypatch):
    """By chance a secure source fails in about one of 10**5 runs."""
    monkeypatch.setenv(COMPILE, compiling)
    count = 1 << 20
    found = source.normal(count, purpose="noise", step=0)
    assert kstest(found.numpy(), "norm").pvalue > 1e-6
    halves = found.view(2, -1)
    for power, want in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)):
        values = found.pow(power)
        assert abs(values.mean().item() - want) < 5 * values.std().item() / math.sqrt(count)
    for one, other in ((halves[0], halves[1]), (halves[0].square(), halves[1].square()), (halves[0].abs(), halves[1])):
        correlation = torch.corrcoef(torch.stack([one, other]))[0, 1].item()
        assert abs(correlation) < 5 / math.sqrt(count / 2)
    quadrants = torch.bincount((halves[0] > 0) + 2 * (halves[1] > 0).long(), minlength=4) / (count / 2)
    assert (quadrants - 0.25).abs().max().item() < 5 * math.sqrt(0.25 * 0.75 / (count / 2))


def test_a_library_is_not_left_behind(monkeypatch, fresh, tmp_path):
    monkeypatch.setattr(compiled_normals.tempfile, "tempdir", str(tmp_path))
    compiled()
    assert not list(tmp_path.iterdir())
