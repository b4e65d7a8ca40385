"""Sums of clamped outer products, with a compiler and without one."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.gradients import boxes


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
    got = boxes.clamped_products(left, right, bound)
    assert got.dtype == dtype
    torch.testing.assert_close(got, plain(left, right, bound), rtol=1e-5, atol=1e-5)


def test_without_a_compiler_in_several_slices(monkeypatch):
    monkeypatch.setattr(boxes, "_EAGER_ELEMENTS", 50)
    left, right, bound = sides(11, 4, 5)
    torch.testing.assert_close(boxes.clamped_products(left, right, bound), plain(left, right, bound))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("records", [0, 1, 60, 128, 129, 300])
@pytest.mark.parametrize(("rows", "columns"), [(17, 9), (40, 40)])
def test_compiled(records, rows, columns):
    if boxes._compiled_kernel() is None:
        pytest.skip("no compiler here")
    left, right, bound = sides(records, rows, columns)
    bound[0], bound[1] = 0, torch.inf
    want = plain(left, right, bound)
    torch.testing.assert_close(boxes.clamped_products(left, right, bound), want, rtol=1e-5, atol=1e-5)
    strided = [side.t().contiguous().t() for side in (left, right)]
    torch.testing.assert_close(boxes.clamped_products(*strided, bound), want, rtol=1e-5, atol=1e-5)


WITHOUT = """
import warnings
import torch
from adadp.gradients.boxes import clamped_products
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
