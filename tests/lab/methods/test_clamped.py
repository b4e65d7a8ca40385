"""Sums of clamped outer products, with a compiler and without one."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.lab.methods import clamped

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_compiler(request, monkeypatch):
    """Compiling takes seconds."""
    if "compiled" not in request.fixturenames:
        monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)


@pytest.fixture
def compiled():
    """Asks for the compiled kernel."""


def plain(left, right, bound):
    return torch.clamp(left.unsqueeze(2) * right.unsqueeze(1), -bound, bound).sum(0)


def sides(records, rows, columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(records)
    left, right = (torch.randn(records, n, generator=generator, dtype=dtype) for n in (rows, columns))
    return left, right, torch.rand(rows, columns, generator=generator, dtype=dtype)


@settings(max_examples=30, deadline=None)
@given(
    records=st.integers(0, 40),
    rows=st.integers(1, 30),
    columns=st.integers(1, 30),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_without_a_compiler(records, rows, columns, dtype):
    left, right, bound = sides(records, rows, columns, dtype)
    got = clamped.clamped_products(left, right, bound)
    assert got.dtype == dtype
    torch.testing.assert_close(got, plain(left, right, bound), rtol=1e-5, atol=1e-5)


def test_without_a_compiler_in_several_slices(monkeypatch):
    monkeypatch.setattr(clamped, "_EAGER_ELEMENTS", 50)
    left, right, bound = sides(11, 4, 5)
    torch.testing.assert_close(clamped.clamped_products(left, right, bound), plain(left, right, bound))


def hard(records, rows, columns, dtype=torch.float32):
    """Bounds that are zero, infinite, negative and NaN, and a product that overflows; and the right answer."""
    left, right, bound = sides(records, rows, columns, dtype)
    bound[0], bound[1], bound[2, 0], bound[3, 1] = 0, torch.inf, -1.0, torch.nan
    if records:
        left[0, 4] = right[0] = torch.finfo(dtype).max / 4
        left[0, 1] = 0
    clean = bound.clone()
    clean[2, 0] = clean[3, 1] = 0
    return left, right, bound, plain(left, right, clean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_bounds_without_a_compiler(dtype):
    left, right, bound, want = hard(30, 17, 9, dtype)
    torch.testing.assert_close(clamped.clamped_products(left, right, bound), want, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("records", [0, 1, 31, 32, 33, 300])
@pytest.mark.parametrize(("rows", "columns"), [(17, 9), (40, 40)])
def test_compiled(records, rows, columns, dtype):
    if clamped._compiled_kernel() is None:
        pytest.skip("no compiler here")
    left, right, bound, want = hard(records, rows, columns, dtype)
    got = clamped.clamped_products(left, right, bound)
    assert got.dtype == dtype
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    strided = [side.t().contiguous().t() for side in (left, right, bound)]
    torch.testing.assert_close(clamped.clamped_products(*strided), want, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (9, 1), (1, 1)])
def test_one_row_or_column(rows, columns):
    left, right, bound = sides(50, rows, columns)
    want = plain(left, right, bound)
    torch.testing.assert_close(clamped.clamped_products(left, right, bound), want, rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    value=st.floats(width=32, allow_nan=False),
    box=st.floats(0, width=32, allow_nan=False),
    sign=st.sampled_from([1, -1]),
)
def test_integers_clamp_as_floats_do(value, box, sign):
    values, bounds = torch.tensor([value * sign]), torch.tensor([box])
    assert torch.equal(clamped._clamp(values, bounds), torch.clamp(values, -bounds, bounds))


@pytest.mark.usefixtures("compiled")
def test_one_compiled_kernel_serves_all_sizes():
    """Poisson batches change size every step, and compiling takes seconds."""
    torch.compiler.reset()  # forgets what other tests had compiled
    clamped._compiled_kernel.cache_clear()
    clamped.clamped_products(*sides(8, 1, 1))
    if clamped._compiled_kernel() is None:
        pytest.skip("no compiler here")
    with torch.compiler.set_stance("fail_on_recompile"):
        for records in (1, 2, 3, 16, 96, 97, 200):
            for rows, columns in ((5, 6), (6, 5), (16, 16), (2, 48), (100, 7), (1, 8), (8, 1)):
                left, right, bound = sides(records, rows, columns)
                want = plain(left, right, bound)
                torch.testing.assert_close(clamped.clamped_products(left, right, bound), want, rtol=1e-5, atol=1e-5)


WITHOUT = """
import warnings
import torch
from adadp.lab.methods.clamped import clamped_products
left, right, bound = torch.randn(7, 5), torch.randn(7, 3), torch.rand(5, 3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        got = clamped_products(left, right, bound)
torch.testing.assert_close(got, torch.clamp(left.unsqueeze(2) * right.unsqueeze(1), -bound, bound).sum(0))
print([str(each.message) for each in caught if "without a compiler" in str(each.message)])
"""


def test_where_no_compiler_works_there_is_one_warning_and_the_same_answer(tmp_path):
    environment = {**os.environ, "CXX": str(tmp_path / "nowhere"), "PATH": str(tmp_path)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip().splitlines()[-1]
    assert said.count("Clamped sums run without a compiler") == 1
    assert "\\n" not in said
