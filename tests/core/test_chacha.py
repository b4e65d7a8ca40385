"""ChaCha20 in tensor operations: the vectors of RFC 8439, and normals as those of a source are."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import kstest

from adadp.noise import GaussianMechanism, chacha
from adadp.noise.chacha import chacha20, fixed_words, normals, quarter_round, signed, states, whole_noise
from adadp.noise.gaussian import _BLOCK, grid_of
from adadp.randomness import SecureSource, SeededSource

gpu = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])
devices = pytest.mark.parametrize("device", ["cpu", gpu])
KEY = bytes(range(32))
ZERO = bytes(32)
LAST = bytes(31) + b"\1"
SECOND = b"\0\xff" + bytes(30)

# RFC 8439, 2.3.2 and appendix A.1: key, counter, nonce, block.
VECTORS = [
    (KEY, 1, (0x09000000, 0x4A000000, 0),
     "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
     "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"),
    (ZERO, 0, (0, 0, 0),
     "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
     "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"),
    (ZERO, 1, (0, 0, 0),
     "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
     "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"),
    (LAST, 1, (0, 0, 0),
     "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
     "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"),
    (SECOND, 2, (0, 0, 0),
     "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
     "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"),
    (ZERO, 0, (0, 0, 0x02000000),
     "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
     "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"),
]  # fmt: skip


def stream(words: torch.Tensor) -> bytes:
    return b"".join((int(word) & 0xFFFFFFFF).to_bytes(4, "little") for word in words.tolist())


@devices
def test_the_quarter_round_of_the_rfc(device):
    given = (0x11111111, 0x01020304, 0x9B8D6F43, 0x01234567)
    words = [torch.tensor([signed(word)], dtype=torch.int32, device=device) for word in given]
    got = tuple(int(word) & 0xFFFFFFFF for word in quarter_round(*words))
    assert got == (0xEA2A92F4, 0xCB1CF8CE, 0x4581472E, 0x5881C4BB)


@devices
@pytest.mark.parametrize(("key", "counter", "nonce", "block"), VECTORS)
def test_the_blocks_of_the_rfc(key, counter, nonce, block, device):
    fixed = fixed_words(key, nonce, torch.device(device))
    counters = torch.tensor([7, counter, 9], dtype=torch.int32, device=device)
    assert stream(chacha20(states(fixed, counters))[:, 1]).hex() == block


@pytest.mark.slow
@devices
def test_the_compiled_kernel_makes_the_blocks_of_the_rfc(device):
    compiled = torch.compile(lambda fixed, counters: chacha20(states(fixed, counters)), dynamic=False)
    for key, counter, nonce, block in VECTORS:
        fixed = fixed_words(key, nonce, torch.device(device))
        counters = torch.arange(counter, counter + 32, dtype=torch.int32, device=device)
        assert stream(compiled(fixed, counters)[:, 0]).hex() == block


@pytest.mark.slow
@devices
def test_the_compiled_noise_is_the_eager_noise(device, monkeypatch):
    found = {}
    for asked in ("0", "1"):
        monkeypatch.setenv(chacha.COMPILE, asked)
        found[asked] = whole_noise(KEY, 64, 2**12, 2.0**40, torch.device(device))
    assert (found["0"] - found["1"]).abs().max() <= 2.0**40 * 1e-14  # the last bit of a logarithm or a cosine


@devices
def test_blocks_of_coordinates_go_on_where_the_last_one_ended(device):
    """Also past the 32 bits of the counter, where the nonce goes on counting."""
    for first in (0, 2**35 - _BLOCK, 2**35):
        whole = whole_noise(KEY, first, 4096, 1e6, torch.device(device))
        half = whole_noise(KEY, first, 2048, 1e6, torch.device(device))
        assert len(whole) == 4096
        assert set(half.tolist()) <= set(whole.tolist())
        assert len(set(whole.tolist())) > 4000
    starts = [whole_noise(KEY, first, 8, 1e9, torch.device(device)).tolist() for first in (0, 8, 2**35, 2**36)]
    assert len({tuple(each) for each in starts}) == 4


@devices
def test_the_tail_reaches_as_far_as_that_of_a_source(device, monkeypatch):
    """The smallest word makes a radius of 9.4; from 32 bits it would end at 6.7."""
    words = torch.zeros(16, 1, dtype=torch.int32, device=device)
    monkeypatch.setattr(chacha, "chacha20", lambda _: words)
    fixed = fixed_words(KEY, (0, 0, 0), torch.device(device))
    made = normals(fixed, torch.zeros(1, dtype=torch.int32, device=device))
    assert made[:4].max().item() == pytest.approx(math.sqrt(128 * math.log(2)))


@pytest.mark.statistical
@devices
def test_normals_are_normal(device):
    count = 2**18
    fixed = fixed_words(SeededSource(5).key(purpose="noise", step=0), (0, 0, 0), torch.device(device))
    made = normals(fixed, torch.arange(count // 8, dtype=torch.int32, device=device)).cpu()
    assert len(made) == count
    assert kstest(made.numpy(), "norm").pvalue > 1e-3
    for power, want in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        spread = made.pow(power).std().item() / math.sqrt(count)
        assert abs(made.pow(power).mean().item() - want) < 4 * spread
    beyond = (made.abs() > 4).sum().item()
    assert abs(beyond - count * math.erfc(4 / math.sqrt(2))) < 20
    pairs = made.view(8, -1)
    assert torch.corrcoef(pairs).sub(torch.eye(8)).abs().max() < 0.03  # neither normals of a block nor their squares
    assert torch.corrcoef(pairs.square()).sub(torch.eye(8)).abs().max() < 0.03


def test_keys_of_steps_purposes_and_seeds_differ():
    keys = {
        SeededSource(seed).key(purpose=purpose, step=step) for seed in (1, 2) for purpose in "ab" for step in (0, 1)
    }
    assert len(keys) == 8
    assert {len(key) for key in keys} == {32}
    assert SeededSource(1).key(purpose="a", step=0) == SeededSource(1).key(purpose="a", step=0)
    assert SecureSource().key(purpose="a", step=0) != SecureSource().key(purpose="a", step=0)


class Elsewhere:
    """A device on which noise is made by the kernel, as far as the release can see; its numbers are here."""

    def __init__(self, monkeypatch):
        from adadp.noise import gaussian

        def drawn(self, first, device):
            count = min(gaussian._size_on(device), self._coordinates - first)
            self._key = self._key or self._source.key(purpose=self._purpose, step=self._step)
            return whole_noise(self._key, first, count, self._deviation, device)

        monkeypatch.setattr(gaussian._Noise, "_drawn", drawn)


@pytest.mark.statistical
def test_a_release_with_the_noise_of_the_kernel_is_on_its_grid(monkeypatch):
    Elsewhere(monkeypatch)
    total = {"a": torch.linspace(-2, 2, 50000, dtype=torch.float64), "b": torch.ones(3, 5)}
    out = GaussianMechanism().release(total, l2_bound=1.0, noise_multiplier=2.0, source=SeededSource(3), step=0)
    grid = grid_of(1.0, 50015)
    assert torch.equal((out["a"] / grid).round() * grid, out["a"])
    assert (out["a"] / grid).abs().max() < 2.0**53
    noise = (out["a"] - total["a"]) / (2.0 * (1 + grid * math.sqrt(50015)))
    assert kstest(noise.numpy(), "norm").pvalue > 1e-3


def test_blocks_of_a_release_have_noise_of_their_own(monkeypatch):
    from adadp.noise import gaussian

    monkeypatch.setattr(gaussian, "_BLOCK", 16)
    for elsewhere in (False, True):
        if elsewhere:
            Elsewhere(monkeypatch)
        total = {"a": torch.zeros(40), "b": torch.zeros(24, dtype=torch.float64)}
        out = GaussianMechanism().release(total, l2_bound=1.0, noise_multiplier=2.0, source=SeededSource(3), step=0)
        numbers = torch.cat([out["a"], out["b"].float()])
        assert len(set(numbers.tolist())) == 64


def test_sums_that_may_be_overwritten_need_no_second_vector():
    total = {"a": torch.randn(1000, dtype=torch.float64), "b": torch.randn(4, 6, dtype=torch.float64).t()}
    kept = {name: value.clone() for name, value in total.items()}
    given = {"l2_bound": 1.0, "noise_multiplier": 2.0, "source": SeededSource(3), "step": 0}
    apart = GaussianMechanism().release(kept, **given)
    out = GaussianMechanism(overwrites=True).release(total, **given)
    assert out["a"].data_ptr() == total["a"].data_ptr()
    assert all(torch.equal(out[name], apart[name]) for name in out)
