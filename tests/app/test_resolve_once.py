"""In one run every text is read once, and every object that follows from it is made once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from adadp.app import start
from adadp.app.config import TrainConfig
from adadp.app.features import parse_features
from adadp.app.spec import RunSpec
from adadp.app.texts.clip_rules import clip_rule
from adadp.app.texts.methods import parse_method
from adadp.plan import Plan

WATCHED = {
    TrainConfig.__post_init__.__code__: "TrainConfig",
    Plan.__post_init__.__code__: "Plan",
    RunSpec.of.__func__.__code__: "RunSpec",
    parse_method.__code__: "parse_method",
    parse_features.__code__: "parse_features",
    clip_rule.__code__: "clip_rule",
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each of ``WATCHED`` is called, whoever calls it by whatever name."""
    found: Counter[str] = Counter()

    def called(frame, event, _):
        if event == "call" and frame.f_code in WATCHED:
            found[WATCHED[frame.f_code]] += 1

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"epsilon": 2.0}, {"noise_multiplier": 3.0}, {"epsilon": 2.0, "method": "agd"}])
def test_a_run_of_a_public_data_set_is_resolved_once(tmp_path, fields):
    config = TrainConfig("cancer", delta=1e-4, steps=4, batch_size=56, **fields)
    with counted() as found:
        start.start(config, tmp_path / "run")
    assert found["TrainConfig"] <= 1, "that of the caller is the first"
    assert found["RunSpec"] == found["parse_method"] == found["parse_features"] == found["clip_rule"] == 1


@pytest.mark.slow
def test_the_plan_is_made_once_where_noise_is_given_and_scaled_once_where_it_is_solved(tmp_path):
    config = TrainConfig("cancer", delta=1e-4, steps=4, batch_size=56, noise_multiplier=3.0)
    with counted() as found:
        start.start(config, tmp_path / "given")
    assert found["Plan"] <= 2, "the plan, and what the page reads of the certificate"
    with counted() as found:
        start.start(config.replace(noise_multiplier=None, epsilon=2.0), tmp_path / "solved")
    assert found["Plan"] <= 3, "a draft whose noise is scaled, the plan, and what the page reads of the certificate"
