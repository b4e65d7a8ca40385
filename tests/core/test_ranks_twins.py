"""Mistakes that other libraries made in several processes, each of which a check of these tests finds.

A twin is a change to what a process does; the checks are those of ``test_ranks_step``.
"""

import pytest
import ranks_cases as cases
import torch
from ranks_cases import Case, Trained
from test_ranks_step import check_coins, check_noise

import adadp.noise.gaussian as gaussian
from adadp.errors import AdaDPError
from adadp.randomness import SecureSource, SeededSource
from adadp.ranks import Ranks, joined
from adadp.sampling import Batches, Timetable
from adadp.sampling.samplers import PoissonSampler
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow

COORDINATES = 40_000


def wrong_noise(rank: int, how: str) -> list[float]:
    """A release of zeros with noise of deviation 3, as one of these libraries would make it."""
    ranks, mechanism = joined(), gaussian.GaussianMechanism()
    zeros = {"a": torch.zeros(COORDINATES, dtype=torch.float64)}
    source = SeededSource(5) if how == "equal shares" else SecureSource()
    given = {"l2_bound": 1.0, "source": source, "step": 0}
    if how == "on every process":
        alone = mechanism.release(zeros, noise_multiplier=3.0, **given)
        return ranks.summed("x", alone["a"]).tolist()
    if how == "on every process, not added":
        return mechanism.release(zeros, noise_multiplier=3.0, **given)["a"].tolist()
    if how == "a share too small":
        return mechanism.release(zeros, noise_multiplier=3.0 / ranks.size**0.5, ranks=ranks, **given)["a"].tolist()
    if how == "equal shares":  # each process makes its own share of coordinates, all from the same numbers
        share = mechanism.release({"a": zeros["a"][::4]}, noise_multiplier=3.0, **given)["a"]
        return ranks.gathered(share).tolist()
    return mechanism.release(zeros, noise_multiplier=3.0, ranks=ranks, **given)["a"].tolist()


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("on every process", "variance"),
        ("on every process, not added", "different numbers"),
        ("a share too small", "variance"),
        ("equal shares", "same noise"),
    ],
)
def test_noise_that_is_made_wrongly_is_found(four, how, found):
    with pytest.raises(AssertionError, match=found):
        check_noise(four.run(wrong_noise, how), 4)
    check_noise(four.run(wrong_noise, "right"), 4)


def equal_masks(rank: int) -> list[list[int]]:
    """Coins that every process tosses from the same seed for its own records, counted from 0."""
    run = Batches(Timetable.of(PoissonSampler(100, 0.3)), SeededSource(1))
    return [[100 * rank + each for each in run.batch(step).tolist()] for step in range(300)]


def all_records(rank: int) -> list[list[int]]:
    """Every process draws from all records, as if it held them alone."""
    run = Batches(Timetable.of(PoissonSampler(400, 0.3)), SecureSource())
    return [run.batch(step).tolist() for step in range(10)]


def rate_of_a_part(rank: int) -> list[list[int]]:
    """Every process draws with the rate that its part would need to fill the whole batch."""
    run = Batches(Timetable.of(PoissonSampler(400, 0.9)), SecureSource(), joined())
    return [run.batch(step).tolist() for step in range(300)]


@pytest.mark.parametrize(
    ("twin", "found"),
    [(equal_masks, "same coins"), (all_records, "own records"), (rate_of_a_part, "another probability")],
)
def test_batches_that_are_drawn_wrongly_are_found(four, twin, found):
    with pytest.raises(AssertionError, match=found):
        check_coins(four.run(twin), 400, 0.3)


class Skipped(AdaDPError):
    """Nothing is to be done for an empty batch."""


def wrong_sums(rank: int, how: str, folder: str) -> Trained:
    sums = PrivateGradients._sums

    def averaged(self, batch, step):
        total, bounds = sums(self, batch, step)
        size = max(1, sum(int((chunk >= 0).sum()) for chunks in batch for chunk in chunks))
        share = self.plan.batch_size / joined().size / size  # so that the mean of the processes' means is released
        return {key: {name: value * share for name, value in part.items()} for key, part in total.items()}, bounds

    def skipped(self, batch, step):
        if not any(bool((chunk >= 0).any()) for chunks in batch for chunk in chunks):
            raise Skipped("nothing to do")
        return sums(self, batch, step)

    release = PrivateGradients.release

    def released(self, **given):
        try:
            return release.__wrapped__(self, **given)
        except Skipped:
            self.step += 1
            return {name: torch.zeros_like(value) for name, value in self.model.named_parameters()}

    copied = Ranks.copy_first
    try:
        if how == "average of averages":
            PrivateGradients._sums = averaged
        elif how == "empty batches skipped":
            PrivateGradients._sums, PrivateGradients.release = skipped, released
        elif how == "parameters not copied":
            Ranks.copy_first = lambda *_: None
        return cases.trained(rank, CASES[how], folder)
    finally:
        PrivateGradients._sums, PrivateGradients.release, Ranks.copy_first = sums, release, copied


CASES = {
    "average of averages": Case(),
    "empty batches skipped": Case(records=3, batch_size=1, steps=6),
    "parameters not copied": Case(),
}


def test_an_average_of_averages_is_found(two, tmp_path):
    one = cases.alone(CASES["average of averages"], tmp_path / "one")
    for each in two.run(wrong_sums, "average of averages", str(tmp_path)):
        with pytest.raises(AssertionError):
            torch.testing.assert_close(torch.tensor(each.gradients), torch.tensor(one.gradients), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("empty batches skipped", "RankError", "different places"),
        ("parameters not copied", "InputError", "not the same parameters after 0 steps"),
    ],
)
def test_processes_that_lose_one_another_are_stopped(two, how, kind, text, tmp_path):
    for found in two.failures(wrong_sums, how, str(tmp_path)):
        assert found[0] == kind
        assert text in found[1]
