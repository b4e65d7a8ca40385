"""The numbers and texts of a command are answered, or refused in words, whatever they are; so are those of functions.

``make fuzz`` draws many more, and new ones.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adadp.accounting import accountant
from adadp.app.accounting.calibrate import longest, smallest_noise
from adadp.app.accounting.run_shape import RunShape
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.texts.schedules import parse_schedule
from adadp.app.zoo.models import build_model
from adadp.errors import AdaDPError

pytestmark = pytest.mark.slow

EXAMPLES = 1000 if settings.get_current_profile_name() == "fuzz" else 12
SECONDS = 60
"""Far more than any of them takes here, on a busy machine."""
COMMANDS: dict[str, dict[str, str]] = {
    "epsilon": {"q": ".01", "noise-multiplier": "1", "steps": "100", "delta": "1e-5", "accountant": "zcdp"},
    "delta": {"q": ".01", "noise-multiplier": "1", "steps": "100", "epsilon": "1", "accountant": "rdp"},
    "calibrate": {"q": ".01", "steps": "100", "epsilon": "1", "delta": "1e-5"},
    "plan": {"data": "cancer", "model": "linear", "epsilon": "2", "delta": "1e-4", "epochs": "2", "batch-size": "50"},
}
MORE = {
    "epsilon": ("epochs", "schedule", "sampling", "neighbours", "group", "accountant"),
    "delta": ("epochs", "schedule", "sampling", "group"),
    "calibrate": ("solve", "rho", "noise-multiplier", "schedule"),
    "plan": (
        *("lr", "clip-norm", "noise-schedule", "features", "method", "records", "seed", "holdout", "ema", "steps"),
        *("class-weights", "input-bound", "threads", "optimizer", "momentum", "sampling", "rho", "clip-rule", "loss"),
    ),
}
_CORPUS = Path(__file__).parents[1] / "corpus" / "words.txt"
WORDS = st.sampled_from(["", "\0", "1" * 30, *_CORPUS.read_text().split()]) | st.text(max_size=12)


def ends(work) -> None:
    """Do ``work``, which must not take for ever."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("It does not end."))
    signal.alarm(SECONDS)
    try:
        work()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@st.composite
def commands(draw) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    options = dict(COMMANDS[name])
    for option in draw(st.lists(st.sampled_from([*options, *MORE[name]]), min_size=1, max_size=2, unique=True)):
        options[option] = draw(WORDS)
    return [name, *(f"--{option}={value}" for option, value in options.items())]


@settings(max_examples=EXAMPLES)
@given(commands())
@example(["plan", "--data=cancer", "--epsilon=2", "--delta=1e-4", "--epochs=" + "1" * 30])
def test_a_command_is_answered_or_refused_in_words(words):
    found = []
    ends(lambda: found.append(CliRunner().invoke(main, words)))
    assert found[0].exception is None or isinstance(found[0].exception, SystemExit), words


NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 0.5, 1e-320, 1e-300, 1e308, 10**30, float("nan"), float("inf"), True, "1", None]
)


@settings(max_examples=EXAMPLES)
@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["poisson", "fixed", "reshuffle"]))
def test_a_function_returns_or_refuses_in_words(one, two, three, sampling):
    judge, shape = accountant("zcdp"), RunShape(sampling, q=0.01)
    decay, event = parse_schedule("exp:s0=10,k=0.1"), RunShape(sampling, q=0.01).run(2.0, epochs=2)
    for work in (
        lambda: RunShape(sampling, q=one),
        lambda: shape.run(one, epochs=two),
        lambda: shape.run(decay, epochs=two),
        lambda: judge.epsilon(event, one),
        lambda: judge.delta(event, one),
        lambda: smallest_noise(partial(shape.run, epochs=2), epsilon=one, delta=two, accountant=judge),
        lambda: longest(partial(shape.first_epochs, decay), epsilon=one, delta=two, accountant=judge),
        lambda: TrainConfig("cancer", epsilon=one, delta=two, epochs=three),
        lambda: build_model("mlp", input_shape=(one, 2), classes=two, seed=0),
    ):
        with suppress(AdaDPError):
            ends(work)
