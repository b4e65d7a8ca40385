"""The memory a record needs is as large as the engine says, within a factor."""

import json
import platform
import subprocess
import sys

import pytest
import torch
from agreement import built, square
from torch import nn

pytestmark = pytest.mark.slow


MEASURED = """
import ctypes, gc, json, pathlib, warnings
import torch
import torch.nn.functional as F
from torch import nn
from adadp.gradients import GradientEngine

warnings.simplefilter("ignore")
torch.set_num_threads(1)

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

def used(engine, batch):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    capture = engine.capture(batch)
    capture.weighted_sums(capture.square_norms([engine.names]), [engine.names])
    return peak()

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.e, self.t = nn.Embedding(100, 64), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    def forward(self, t):
        return self.t(self.e(t)).mean(1)

class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.GRU(32, 96, batch_first=True)
    def forward(self, x):
        return self.r(x)[0][:, -1]

def loss(model, x):
    return model(x).square().mean(1)

convolutions = [nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU()]
CASES = {
    "mlp": (nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10)),
            lambda n: torch.randn(n, 256), 1000, 9000),
    "cnn": (nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(2048, 10)),
            lambda n: torch.randn(n, 3, 16, 16), 50, 250),
    "transformer": (Words(), lambda n: torch.randint(0, 100, (n, 48)), 10, 70),
    "generic": (Steps(), lambda n: torch.randn(n, 10, 32), 30, 150),
}
answer = {}
for name, (model, make, few, many) in CASES.items():
    engine = GradientEngine(model, loss, (make(2),))
    few_batch, many_batch = (make(few),), (make(many),)
    low = used(engine, few_batch)
    answer[name] = engine.bytes_per_record * (many - few) / (used(engine, many_batch) - low)
print(json.dumps(answer))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks Linux for the peak, and glibc to give memory back")
def test_bytes_per_record_is_what_a_record_really_needs():
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout)
    assert set(ratios) == {"mlp", "cnn", "transformer", "generic"}
    for name, ratio in ratios.items():
        assert 0.5 < ratio < 3, (name, ratio)


def test_chunks_fit_the_limit():
    engine = built(nn.Linear(4, 3), square, (torch.randn(3, 4),))
    assert engine.bytes_per_record > 0
    assert engine.chunk_size(10 * engine.bytes_per_record) == 10
    assert engine.chunk_size(11 * engine.bytes_per_record - 1) == 10
