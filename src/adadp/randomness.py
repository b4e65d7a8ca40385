"""Random numbers of a run: from the operating system, or from a seed that makes it reproducible and not secure.

Every random number of a run (batches, noise) is asked of one ``RandomSource``, by ``purpose`` and ``step``. The sources
differ in where their 64-bit words come from and in nothing else, so what a seeded test says about the distribution of
``normal`` holds for the code that makes the secure noise.

    asked for                           answer
    count = 0                           an empty tensor
    count odd                           the last normal of the last pair is dropped
    coins with probability 0 or 1       all False, all True
    the same purpose and step twice     seeded: the same numbers; secure: new ones
    seed outside [0, 2**63)             refused, as are a negative count or step and an empty purpose

What is not covered: a source makes doubles, so its distributions are right to about one part in 2**50 and the normal
ends at 9.4 standard deviations (``adadp.normals``); drawing takes a time that does not depend on the numbers by design,
which nobody has proved for the processor's quotients and roots, and which a subset drawn by hits does not keep; memory
that held numbers is not wiped.
"""

from __future__ import annotations

import hashlib
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.normals import normals_of

_MOST_BYTES = 2**30
"""Asked of the operating system's generator at once; its lengths are 32-bit."""

_TWISTER = 624
"""Words in the state of torch's generator on the processor, a Mersenne twister; each is kept in 64 bits."""


class RandomSource(ABC):
    """Random numbers on the CPU, in double precision, for a ``purpose`` (such as "noise") at a ``step`` of the run."""

    @property
    @abstractmethod
    def reproducible(self) -> bool:
        """Whether asking again gives the same numbers, so that whoever knows the seed knows the noise."""

    @abstractmethod
    def describe(self) -> str:
        """What a certificate says about this source."""

    @abstractmethod
    def _words(self, count: int, purpose: str, step: int) -> npt.NDArray[np.uint64]:
        """``count`` independent words of 64 random bits; the caller does not write into them."""

    @final
    def words(self, count: int, *, purpose: str, step: int) -> npt.NDArray[np.uint64]:
        """``count`` independent words of 64 random bits. They must not be written into.

        Of a reproducible source, fewer words are the first ones of more.
        """
        if not isinstance(purpose, str) or not purpose:
            raise InputError(
                f"purpose must be a name, got {purpose!r}.",
                why="Two uses of one step must not share random numbers.",
                fix='Say what the numbers are for, such as "noise".',
            )
        step = checks.count("step", step, minimum=0, why="Steps are counted from 0.")
        return self._words(checks.count("count", count, minimum=0), purpose, step)

    @final
    def uniform(self, count: int, *, purpose: str, step: int) -> Tensor:
        """``count`` numbers in [0, 1): all multiples of 2**-53 are equally likely."""
        words = self.words(count, purpose=purpose, step=step)
        return torch.from_numpy((words >> np.uint64(11)).view(np.int64) * 2.0**-53)

    @final
    def coins(self, count: int, probability: float, *, purpose: str, step: int) -> Tensor:
        """``count`` independent booleans, each True with ``probability``.

        A coin compares 64 bits with floor(probability * 2**64). For a double of at least 2**-12 that product is whole,
        so the coin is exact; below, it is True less often than stated, by less than 2**-64, and never more often.
        ``sampling.heads`` finds the coins that are True without a word for every coin.
        """
        probability = checks.probability("probability", probability)
        words = self.words(count, purpose=purpose, step=step)
        heads = int(probability * 2.0**64)
        if heads == 2**64:
            return torch.ones(len(words), dtype=torch.bool)
        return torch.from_numpy(words < np.uint64(heads))

    @final
    def normal(self, count: int, *, purpose: str, step: int) -> Tensor:
        """``count`` standard normals, float64: ``adadp.normals`` says how they are made, and how far they reach."""
        pairs = (checks.count("count", count, minimum=0) + 1) // 2
        return torch.from_numpy(normals_of(self.words(2 * pairs, purpose=purpose, step=step)))[:count]

    @final
    def key(self, *, purpose: str, step: int) -> bytes:
        """256 bits that key a generator of its own, such as that of the noise on a GPU."""
        return self.words(4, purpose=f"{purpose}, key", step=step).astype("<u8").tobytes()

    @final
    def permutation(self, count: int, *, purpose: str, step: int) -> Tensor:
        """The numbers 0 to ``count`` - 1 in random order: the order of as many random keys.

        Two equal keys would leave their order to the sort; with 64-bit keys that happens to 60,000 records in one of
        10**10 draws, and then moves two records.
        """
        keys = self.words(count, purpose=purpose, step=step).view(np.int64)
        return torch.argsort(torch.from_numpy(keys.copy()))

    @final
    def subset(self, count: int, size: int, *, purpose: str, step: int) -> Tensor:
        """``size`` of the numbers 0 to ``count`` - 1, sorted; every subset is equally likely.

        A small one is what independent draws first hit: the first ``size`` distinct numbers of a sequence of draws. A
        draw takes a 64-bit word modulo ``count``, whose probabilities are equal to within ``count`` / 2**64.
        """
        count, size = checks.count("count", count, minimum=0), checks.count("size", size, minimum=0)
        if size > count:
            raise InputError(f"A subset of {size} was asked of {count}.", fix="Ask for a smaller one.")
        if 2 * size > count:
            return self.permutation(count, purpose=purpose, step=step)[:size].sort().values
        # at most half are taken, so a draw is new with 1/2 or more
        words = self.words(4 * size + 64, purpose=purpose, step=step)
        first: npt.NDArray[np.intp] = np.sort(np.unique(words % np.uint64(max(1, count)), return_index=True)[1])
        if len(first) < size:
            return self.permutation(count, purpose=f"{purpose}, again", step=step)[:size].sort().values
        chosen = (words[first[:size]] % np.uint64(max(1, count))).astype(np.int64)
        return torch.from_numpy(np.sort(chosen))

    @final
    @contextmanager
    def random_layers(self, device: torch.device, *, step: int, purpose: str = "random layers") -> Iterator[None]:
        """A state of this source for the generators of torch, which dropout draws from; they get their own back.

        A record that changes its row changes its mask. A secure run is private all the same, because nobody knows the
        masks; ``torch.manual_seed`` would leave 2**32 possibilities, which can be tried. So the whole state of the
        processor's generator is drawn: 624 words of 32 bits behind a head of 24 bytes.
        """
        words = self.words(1 + _TWISTER // 2, purpose=purpose, step=step)
        before, state = torch.get_rng_state(), torch.Generator().manual_seed(0).get_state()
        state.numpy()[24 : 24 + 8 * _TWISTER].view(np.uint64)[:] = words[1:].view(np.uint32)
        elsewhere = device.type != "cpu"
        with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=elsewhere):
            if elsewhere:
                torch.manual_seed(int(words[0]) >> 1)
            torch.set_rng_state(state)
            try:
                yield
            finally:
                torch.set_rng_state(before)


@final
@dataclass(frozen=True)
class SecureSource(RandomSource):
    """Numbers nobody can foresee or replay: ``purpose`` and ``step`` are not looked at.

    The bytes come from the generator of the TLS library: AES-256 in counter mode, keyed by the operating system, and
    keyed again after a fork since OpenSSL 1.1.1, the oldest that Python 3.10 accepts. It makes the keys of TLS sessions
    too, and is 14 times as fast as ``os.urandom`` (on one core 0.12 against 1.7 ms for the 568 kB behind 71,010
    normals), which would take longer than all the rest of a release.
    """

    @property
    def reproducible(self) -> bool:
        return False

    def describe(self) -> str:
        return "secure (operating-system entropy)"

    def _words(self, count: int, purpose: str, step: int) -> npt.NDArray[np.uint64]:  # noqa: ARG002
        size = 8 * count
        parts = [ssl.RAND_bytes(min(_MOST_BYTES, size - start)) for start in range(0, size, _MOST_BYTES)]
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=np.uint64)


@final
@dataclass(frozen=True)
class SeededSource(RandomSource):
    """Numbers that follow from ``seed``, ``purpose`` and ``step`` alone: for tests and for repeating a run.

    There is no state to save: a run that resumes at step t asks for step t and goes on bit for bit. Each triple keys a
    stream of its own by a 256-bit hash. (A ``torch.Generator`` would not do: on the CPU it looks at 32 bits of its
    seed, and among the streams of 100,000 steps some two would probably be one.) The words are the same on every
    machine, and so are the normals.
    """

    seed: int

    def __post_init__(self) -> None:
        why = "It names one of the reproducible runs."
        seed = checks.count("seed", self.seed, minimum=0, why=why)
        if seed >= 2**63:
            raise InputError(f"`seed` must be below 2**63, got {seed}.", why=why, fix="Pass a smaller `seed`.")
        object.__setattr__(self, "seed", seed)

    @property
    def reproducible(self) -> bool:
        return True

    def describe(self) -> str:
        return f"seed {self.seed}: reproducible, not secure"

    def _words(self, count: int, purpose: str, step: int) -> npt.NDArray[np.uint64]:
        name = f"{self.seed}:{step}:{purpose}".encode()
        key = int.from_bytes(hashlib.blake2b(name, digest_size=32).digest(), "little")
        words: npt.NDArray[np.uint64] = np.random.SFC64(np.random.SeedSequence(key)).random_raw(count)
        return words


def source_of(seed: int | None) -> RandomSource:
    """The numbers of a run: secure ones, or those of ``seed``."""
    return SecureSource() if seed is None else SeededSource(seed)
