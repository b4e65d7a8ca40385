"""What a method has to say about a run."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from adadp.app import start
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.texts.methods import parse_method


@pytest.mark.parametrize("method", ["adadp", "dpopt"])
def test_a_run_that_ends_before_its_scales_begin_says_so(method):
    assert parse_method(method).note(21) is None
    assert "DP-SGD up to step 20, and the run has 20" in parse_method(method).note(20)
    assert parse_method(f"{method}:start=5").note(6) is None
    assert parse_method("dpsgd").note(1) is None


@pytest.mark.slow
def test_plan_and_certificate_say_it():
    config = TrainConfig("cancer", epsilon=1.0, delta=1e-4, steps=3, method="adadp", threads=1, seed=0)
    assert any("adadp is DP-SGD up to step 20" in note for note in start.start(config).certificate["notes"])
    flags = ["plan", "--data", "cancer", "--epsilon", "1", "--steps"]
    assert "adadp is DP-SGD up to step 20" in CliRunner().invoke(main, [*flags, "3"]).output
    assert "is DP-SGD" not in CliRunner().invoke(main, [*flags, "30"]).output
