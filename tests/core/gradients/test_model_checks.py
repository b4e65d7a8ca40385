"""Models that are refused by name before anything is charged, and compiled ones, which are not."""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adadp.app import model_checks as room
from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.gradients import model_checks as compiled
from adadp.gradients.oracle import loop_gradients
from adadp.records import Records

X, Y = torch.randn(5, 6), torch.tensor([0, 1, 1, 0, 1])


def loss(model, x, y):
    return F.cross_entropy(model(x).flatten(1), y, reduction="none")


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


class Sharded(nn.Module):
    """Stands for FSDP, whose classes need a process group."""

    def __init__(self):
        super().__init__()
        self.module = network()


Sharded.__name__ = "FullyShardedDataParallel"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.DataParallel(network()), r"The model is wrapped in DataParallel.*model\.module"),
        (nn.Sequential(nn.DataParallel(network())), r"0 is wrapped in DataParallel"),
        (Sharded(), "wrapped in FullyShardedDataParallel.*sums are added here"),
        (nn.Sequential(nn.LazyLinear(2)), r"0\.weight is not initialised.*Run the model once"),
        (network().to("meta"), r"0\.weight is on the meta device.*to_empty"),
        (nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2, device="meta")), r"1\.weight is on the meta device"),
        (nn.Linear(6, 2, dtype=torch.cfloat), "weight is complex.*view_as_complex"),
        (nn.Sequential(), "no trained parameter"),
    ],
)
def test_a_model_that_cannot_work_is_refused_by_name(model, message):
    with pytest.raises(InputError, match=message) as caught:
        GradientEngine(model, loss, (X, Y))
    assert caught.value.fix


def test_distributed_models_are_refused(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        with pytest.raises(InputError, match="wrapped in DistributedDataParallel"):
            GradientEngine(wrapped, loss, (X, Y))
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        model = torch.distributed.tensor.distribute_module(network(), mesh)
        with pytest.raises(InputError, match=r"0\.weight is split over processes \(DTensor\)"):
            GradientEngine(model, loss, (X, Y))
    finally:
        torch.distributed.destroy_process_group()


def test_parameters_on_several_devices_are_named():
    spread = SimpleNamespace(named_modules=lambda: [], named_parameters=lambda: [])
    spread.parameters = lambda: [SimpleNamespace(device="cuda:1"), SimpleNamespace(device="cpu")]
    with pytest.raises(InputError, match=r"several devices: cpu, cuda:1.*one device"):
        room.check_model(spread)


@pytest.mark.parametrize("layer", [nn.GroupNorm(4, 4), nn.InstanceNorm2d(4, affine=True)])
def test_normalising_one_number_is_explained(layer):
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"normalises a single number.*fewer groups"):
        GradientEngine(model, loss, (torch.randn(5, 4, 1, 1), Y))


@pytest.mark.parametrize(
    "data",
    [
        X.to_sparse,
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
        lambda: [torch.nested.nested_tensor([X[0], X[1][:3]]), Y[:2]],
        lambda: [torch.nested.nested_tensor([X[0], X[1][:3]], layout=torch.jagged), Y[:2]],
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_data_without_rows_of_numbers_is_refused(data):
    with pytest.raises(InputError, match=r"sparse, nested or quantised.*dense"):
        Records(data()).example()


def test_float32_data_is_given_to_a_model_in_half_precision_in_its_dtype():
    x, y = Records((X, Y), dtype=torch.bfloat16).batch(torch.tensor([0, 1]))
    assert (x.dtype, y.dtype) == (torch.bfloat16, torch.int64)
    engine = GradientEngine(network().bfloat16(), loss, (x, y))
    assert engine.capture((x, y)).square_norms([engine.names]).dtype == torch.float32
    assert Records(X.half(), dtype=torch.float32).example()[0].dtype == torch.float16  # nothing is widened


def never(*_):
    pytest.fail("compiled code ran")


COMPILED = {
    "the model": lambda: torch.compile(network(), backend=never),
    "in place": lambda: _in_place(network()),
    "a part": lambda: nn.Sequential(torch.compile(nn.Linear(6, 8), backend=never), nn.Linear(8, 2)),
    "a part in place": lambda: nn.Sequential(_in_place(nn.Linear(6, 8)), nn.Linear(8, 2)),
}


def _in_place(model):
    model.compile(backend=never)
    return model


@pytest.mark.parametrize("which", COMPILED)
def test_a_compiled_model_is_run_as_it_was_written(which):
    """The backend fails the test: compiled code may not run, as records could not be followed through it."""
    model = COMPILED[which]()
    engine = GradientEngine(model, loss, (X, Y))
    assert engine.notes == (compiled.COMPILED,)
    sums = engine.capture((X, Y)).weighted_sums(torch.ones(5, 1), [engine.names])
    alone = loop_gradients(engine.model, engine.loss, (X, Y), 5)
    for name, value in sums.items():
        torch.testing.assert_close(value, sum(row[name] for row in alone))
    if which != "a part":
        assert not any("_orig_mod" in name for name in engine.names)


def test_a_compiled_loss_is_run_as_it_was_written():
    engine = GradientEngine(network(), torch.compile(loss, backend=never), (X, Y))
    engine.capture((X, Y))


def test_compiling_is_left_as_it_was():
    """Outside of the engine the user's compiled model is compiled as before."""
    ran = []

    def backend(graph, _):
        ran.append(graph)
        return graph.forward

    model = torch.compile(network(), backend=backend)
    GradientEngine(model, loss, (X, Y)).capture((X, Y))
    assert not ran
    model(X)
    assert ran


@pytest.mark.parametrize("make", [torch.jit.script, functools.partial(torch.jit.trace, example_inputs=X)])
@pytest.mark.filterwarnings("ignore")
def test_scripts_are_computed_record_by_record(make):
    engine = GradientEngine(make(network()), loss, (X, Y))
    assert "called by no torch function (a script, an extension)" in engine.notes[0]
    sums = engine.capture((X, Y)).weighted_sums(torch.ones(5, 1), [engine.names])
    alone = loop_gradients(engine.model, engine.loss, (X, Y), 5)
    for name, value in sums.items():
        torch.testing.assert_close(value, sum(row[name] for row in alone))
