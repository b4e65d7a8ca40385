"""Private steps of models that are split over processes, against the same in one process."""

import os
import weakref
from typing import Any

import pytest
import sharded_cases as cases
import torch
from processes import Group
from ranks_cases import Case
from test_ranks_step import QUANTILE, check_noise
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import adadp.noise.gaussian as gaussian
from adadp.app.clipping.fixed import PerLayer
from adadp.app.compiled_passes import CompiledPasses
from adadp.app.methods.adadp import AdaDp
from adadp.app.sharded.engine import ShardedEngine
from adadp.app.sharded.gathering import Gathering
from adadp.app.texts.clip_rules import parse_clip_rule
from adadp.app.texts.methods import parse_method
from adadp.errors import AdaDPError
from adadp.randomness import SecureSource, SeededSource
from adadp.ranks import Ranks, joined
from adadp.sharding import GATHERED
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow

CASE = Case(steps=3, records=60, batch_size=12)
FEW = Case(steps=6, records=3, batch_size=1)
"""Most processes have no record in most batches."""
SAME = {
    "mlp": ("mlp", CASE),
    "few records": ("mlp", FEW),
    "one layer": ("single", CASE),
    "encoder": ("encoder", CASE),
    "gpt2": ("gpt2", CASE),
    "llama": ("llama", CASE),
    "adadp": ("encoder", Case(steps=6, records=60, batch_size=12, method=AdaDp(start=2))),
    "adadp, one layer": ("single", Case(steps=6, records=60, batch_size=12, method=AdaDp(start=2))),
    "per layer": ("single", Case(steps=2, records=60, batch_size=12, clip=PerLayer((0.5, 0.4)))),
    "automatic": ("single", Case(steps=2, records=60, batch_size=12, clip=parse_clip_rule("automatic:1"))),
    "quantile": ("single", Case(steps=6, records=60, batch_size=12, clip=QUANTILE)),
    "fixed": ("single", Case(steps=4, records=60, batch_size=12, settings=(("sampling", "fixed"),))),
    "reshuffled": ("single", Case(steps=7, records=60, batch_size=12, settings=(("sampling", "reshuffle"),))),
    "without noise": ("single", Case(steps=3, records=60, batch_size=12, noise=0.0)),
}
ON_FOUR = ("few records", "gpt2", "adadp")


@pytest.mark.parametrize(("name", "size"), [*((name, 2) for name in SAME), *((name, 4) for name in ON_FOUR)])
def test_a_seeded_run_is_that_of_one_process(name, size, request, tmp_path):
    kind, case = SAME[name]
    (tmp_path / "one").mkdir()
    one = cases.trained(cases.network(kind), kind, case, str(tmp_path / "one"))
    found = request.getfixturevalue({2: "two", 4: "four"}[size]).run(cases.trained_together, kind, case, str(tmp_path))
    for each in found:
        torch.testing.assert_close(torch.tensor(each.gradients), torch.tensor(one.gradients), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.tensor(each.parameters), torch.tensor(one.parameters), rtol=1e-4, atol=1e-5)
        assert each.clip_state == pytest.approx(one.clip_state, rel=1e-4)
        assert each.charges == one.charges
        assert each.head == found[0].head


def dropped_out(rank: int, folder: str) -> tuple[list[list[float]], list[float]]:
    found = cases.trained_together(rank, "dropout", CASE, folder)
    return found.gradients, found.parameters


def test_a_model_that_draws_random_numbers_is_trained(two, tmp_path):
    first, second = two.run(dropped_out, str(tmp_path))
    assert first == second
    assert torch.tensor(first[1]).isfinite().all()


def noise_of_parts(rank: int, how: str) -> list[float]:
    """A release of zeros with noise of deviation 3, of which each process has some rows, put together."""
    ranks, mechanism = joined(), gaussian.GaussianMechanism()
    mesh = init_device_mesh("cpu", (ranks.size,))
    zeros = {
        name: distribute_tensor(torch.zeros(shape, dtype=torch.float64), mesh, [Shard(0)])
        for name, shape in {"uneven": (7, 3), "a": (1000, 40), "few": (3,)}.items()
    }
    multiplier = 3.0 / ranks.size**0.5 if how == "a share too small" else 3.0
    source = SeededSource(5) if how == "equal shares" else SecureSource()
    given = {"l2_bound": 1.0, "step": 0, "noise_multiplier": multiplier, "source": source}
    if how == "on every process":  # each adds noise to its part of all sums, before they are added up
        alone = mechanism.release({"a": torch.zeros(1000, 40).double()}, **given)
        return ranks.summed("x", alone["a"]).view(-1).tolist()
    if how == "equal shares":  # every process takes the numbers of the first coordinates
        alone = mechanism.release({"a": torch.zeros(1000 // ranks.size, 40).double()}, **given)
        return torch.cat(ranks.all_of("x", alone["a"])).view(-1).tolist()
    return mechanism.release(zeros, ranks=ranks, **given)["a"].full_tensor().view(-1).tolist()


@pytest.mark.statistical
def test_the_noise_of_all_shares_is_that_of_one(four):
    check_noise(four.run(noise_of_parts, "right"), 4)


@pytest.mark.parametrize(
    ("how", "found"),
    [("on every process", "variance"), ("a share too small", "variance"), ("equal shares", "same noise")],
)
def test_noise_that_is_made_wrongly_is_found(four, how, found):
    with pytest.raises(AssertionError, match=found):
        check_noise(four.run(noise_of_parts, how), 4)


def wrong_sums(rank: int, how: str, folder: str) -> cases.Trained:
    share, sums, scattered = ShardedEngine._share, PrivateGradients._sums, Ranks.scattered_sum

    def averaged(self, name, whole):  # as FSDP does
        return share(self, name, whole) / joined().size

    def means(self, batch, step):
        total, bounds = sums(self, batch, step)
        size = max(1, sum(int((chunk >= 0).sum()) for chunks in batch for chunk in chunks))
        part = self.plan.batch_size / joined().size / size
        return {key: {name: value * part for name, value in each.items()} for key, each in total.items()}, bounds

    try:
        if how == "average over shards":
            ShardedEngine._share = averaged
        elif how == "average of averages":
            PrivateGradients._sums = means
        elif how == "not added up":
            ranks = joined()
            Ranks.scattered_sum = lambda self, values: values.view(ranks.size, -1)[ranks.rank].double()
        return cases.trained_together(rank, "single", CASE, folder)
    finally:
        ShardedEngine._share, PrivateGradients._sums, Ranks.scattered_sum = share, sums, scattered


@pytest.mark.parametrize("how", ["average over shards", "average of averages", "not added up", "right"])
def test_wrong_sums_are_found(two, how, tmp_path):
    (tmp_path / "one").mkdir()
    one = cases.trained(cases.network("single"), "single", CASE, str(tmp_path / "one"))
    (found, _) = two.run(wrong_sums, how, str(tmp_path))
    close = torch.allclose(torch.tensor(found.gradients), torch.tensor(one.gradients), rtol=1e-4, atol=1e-5)
    assert close is (how == "right")


def gathered_at_most(rank: int, kind: str, folder: str) -> dict[str, float]:
    """The most bytes of whole parameters, and of whole sums, that were there at once; and those of the model."""
    gather, share = Gathering._gather, ShardedEngine._share
    model = cases.split_network(kind)
    split = list(model.parameters())
    most = {"gathered": 0, "sums": 0, "largest": 0}
    alive: list[Any] = []

    def watched(self, name):
        gather(self, name)
        whole = [getattr(each, GATHERED) for each in split if hasattr(each, GATHERED)]
        most["gathered"] = max(most["gathered"], sum(each.untyped_storage().nbytes() for each in whole))

    def shared(self, name, whole):
        alive[:] = [each for each in alive if each() is not None]
        alive.append(weakref.ref(whole))
        most["sums"] = max(most["sums"], sum(each().nbytes for each in alive))
        most["largest"] = max(most["largest"], whole.nbytes)
        return share(self, name, whole)

    Gathering._gather, ShardedEngine._share = watched, shared
    try:
        cases.trained(model, kind, CASE, folder)
    finally:
        Gathering._gather, ShardedEngine._share = gather, share
    whole_model = sum(each.numel() * each.element_size() for each in model.parameters())
    own = sum(each.to_local().nbytes for each in model.parameters())
    return {**most, "model": whole_model, "own": own}


def test_no_process_holds_the_model_or_its_gradient(two, tmp_path):
    for found in two.run(gathered_at_most, "deep", str(tmp_path)):
        assert 0 < found["gathered"] < 0.45 * found["model"]  # two of its six blocks, and what is no block
        assert found["own"] < 0.6 * found["model"]
        assert 0 < found["sums"] <= 2 * found["largest"]
        assert found["largest"] < 0.1 * found["model"]


def built(rank: int, how: str, folder: str) -> None:
    """A model, or a run, that is not supported."""
    kind, given, case = "mlp", {}, CASE
    model = cases.network("mlp")
    mesh = init_device_mesh("cpu", (2,))
    if how == "whole model not split":
        for each in model.blocks:
            fully_shard(each, mesh=mesh)
    elif how == "columns":
        kind, model = "deep", cases.network("deep")  # of even widths
        fully_shard(model, mesh=mesh, shard_placement_fn=lambda value: Shard(value.dim() - 1))
    elif how == "ignored":
        fully_shard(model, mesh=mesh, ignored_params={model.last.weight})
    elif how == "copies":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts")))
    elif how == "precision":
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    elif how == "no closed form":
        model.last = cases.Scaled(5, 2)
        cases.split(model, model.blocks)
    elif how == "records mixed":
        model.blocks[1].norm = cases.Centred()
        cases.split(model, model.blocks)
    else:
        model = cases.split(model, model.blocks)
    if how == "exact":
        case = Case(steps=2, records=60, batch_size=12, arithmetic="exact")
    elif how == "method":
        case = Case(steps=2, records=60, batch_size=12, method=parse_method("dpsgd-momentum"))
    elif how == "compiled":
        given["passes"] = CompiledPasses
    with cases.private(model, kind, case, folder, **given) as run:
        run.release()


REFUSED = {
    "whole model not split": ("InputError", "Call fully_shard(model) on the whole model last"),
    "columns": ("InputError", "is not split by rows"),
    "ignored": ("InputError", "last.weight is not split over the processes"),
    "copies": ("InputError", "is not split over all processes of the run"),
    "precision": ("InputError", "mixed precision policy"),
    "no closed form": ("InputError", "no closed form for per-example gradients applies"),
    "records mixed": ("InputError", "no closed form for per-example gradients applies"),
    "exact": ("InputError", "Use dpsgd or adadp in fast arithmetic"),
    "method": ("InputError", "The method dpsgd-momentum in fast arithmetic does not work"),
    "compiled": ("InputError", "Leave compile out"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_not_supported_is_refused_before_a_charge(two, how, tmp_path):
    kind, text = REFUSED[how]
    for found in two.failures(built, how, str(tmp_path)):
        assert found[0] == kind, found
        assert text in found[1]
    assert not (tmp_path / "ledger.jsonl").exists() or cases.charged(tmp_path) == 0


def goes_wrong(rank: int, how: str, folder: str) -> tuple[str, str, int]:
    """A step in which something goes wrong in the second process."""
    kind = "turned" if how == "mixed" else "branching"
    model = cases.split_network(kind)
    with cases.private(model, kind, CASE, folder) as run:
        run.release()
        if how == "mixed" and rank == 1:
            model[0].turned = 1
        elif rank == 1 and how != "dies":
            model.limit, model.how = -100.0, how
        elif how == "dies" and rank == 1:
            Gathering._go_back = lambda self, name: os._exit(9)
        checks, PrivateGradients._checks = PrivateGradients._checks, lambda self, step: step == 1 or checks(self, step)
        try:
            run.release()
        except AdaDPError as error:
            return type(error).__name__, str(error), sum(run.ledger.charges.values())
        finally:
            PrivateGradients._checks = checks
        return "went on", "", 0


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("mixed", "MixedRecords", "is not what it is for that record alone"),
        ("skips", "RankError", "different places"),
        ("turns", "InputError", "was not seen when it was looked over"),
        ("raises", "InputError", "ValueError at sharded_cases.py"),
    ],
)
def test_what_goes_wrong_in_one_process_is_told_to_all(how, kind, text, tmp_path):
    group = Group(2, timeout=15)
    found = group.run(goes_wrong, how, str(tmp_path))
    group.close()
    for name, words, charges in found:
        assert name == kind, (name, words)
        assert text in words
        assert "17" not in words
        assert charges == 1


def test_a_process_that_dies_in_a_pass_stops_the_others(tmp_path):
    group = Group(2, timeout=15)
    group.start(goes_wrong, "dies", str(tmp_path))
    (found,) = group.answers(1).values()
    group.close()
    assert found[0] == "RankError", found
    assert found[2] == 1
