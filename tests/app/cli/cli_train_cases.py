"""What the tests of cli train share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from adadp.app.cli import main

KEYS = {
    "test_accuracy",
    "epsilon",
    "delta",
    "noise_multiplier",
    "steps",
    "seconds",
    "method",
    "private",
    "out",
    "features",
}
KEYS |= {"balanced_accuracy", "headline", "rehearsal", "epsilon_if_unseeded", "trade_off", "trade_off_if_unseeded"}


SHORT = (
    "--data",
    "cancer",
    "--noise-multiplier",
    "2",
    "--delta",
    "1e-4",
    "--steps",
    "4",
    "--seed",
    "0",
    "--threads",
    "1",
)


QUICK = (
    "--data",
    "cancer",
    "--noise-multiplier",
    "0",
    "--allow-nonprivate",
    "--steps",
    "4",
    "--seed",
    "0",
    "--threads",
    "1",
)


def run(*arguments, code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert not result.exception or isinstance(result.exception, SystemExit)
    return result


def process(*arguments, **options) -> subprocess.Popen:
    """The command in a process of its own, with its output in pipes."""
    code = "import sys; from adadp.app.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run("train", *SHORT, "--out", out)
    return out
