"""The processes of one run: which records each holds, and all that they tell one another.

torchrun, or whoever called ``torch.distributed.init_process_group``, started them; they trust one another. Each process
is called by its rank, a number from 0 on. The *first* (0) owns what there is once: ledger, folder, secret draws that
all share. In one process (``ONE``) every call here does nothing.

**No process waits for one that has failed.** Whatever they do together begins with a meeting, in which each says where
it is and whether it has failed. Work of one process alone is done inside ``guarded``: if it fails there, the process
goes to the meeting that the others come to next, tells its error, and all of them raise it.

    what happens                                       every process
    =================================================  =================================================================
    an error of AdaDP in one of them                   raises it, with the number of the process
    any other exception in one of them                 ``RankError`` with its type; its text may show records
    they are at different places of the program        ``RankError``
    one ended, was killed, or does not answer in time  ``RankError``, at once or after ``ADADP_RANK_TIMEOUT`` seconds

What they exchange is sensitive and not encrypted: the network between the machines must be one that can be trusted.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from adadp import errors
from adadp.errors import AdaDPError, InputError, RankError

TIMEOUT = "ADADP_RANK_TIMEOUT"
"""The environment variable with the seconds after which a process that does not answer is given up."""

_SECONDS = 1800
"""Unless told otherwise: the others wait while the first measures a model on test data, or writes a checkpoint."""
_TOLD = "told"
"""The attribute of an exception that all processes know of."""

_P = ParamSpec("_P")
_Made = TypeVar("_Made")
_Told = tuple[str, tuple[str, str, str] | None]
"""What the others are told of an exception: the name of its class, and its words if they are AdaDP's."""


class Ranks:
    """Which process of the run this one is, and how it reaches the others."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank, self.size = rank, size
        self._group = group
        self._lost = False

    @property
    def first(self) -> bool:
        """Whether this is the process that owns the ledger and the folder."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    def part(self, count: int) -> range:
        """The records of this process among ``count``. Parts differ by one record at most, and may hold none."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around work of this process: what is raised in it is raised in the others, at their next meeting."""
        try:
            yield
        except BaseException as error:
            told = getattr(error, _TOLD, False) or isinstance(error, KeyboardInterrupt)  # who interrupts does not wait
            if self.several and not told:
                with suppress(RankError):  # nobody is left to tell
                    self._meet("failing", error=error)
            raise

    def meet(self, what: str) -> None:
        """Wait until all have come to ``what``."""
        self._meet(what)

    def any(self, what: str, flag: bool) -> bool:
        """Whether the ``flag`` of any process is set."""
        return any(self._meet(what, int(flag)))

    def from_first(self, what: str, make: Callable[[], _Made]) -> _Made:
        """What ``make`` returns in the first process, in all of them. If it raises there, it does everywhere."""
        if not self.several:
            return make()
        self._meet(what)
        found: list[Any] = [None, None]
        failed: BaseException | None = None
        if self.first:
            try:
                made = make()
                found[0] = pickle.dumps(made)
            except BaseException as error:
                failed, found[1] = error, _told(error)
        self._run(what, lambda: dist.broadcast_object_list(found, src=0, group=self._group))
        if failed is not None:
            setattr(failed, _TOLD, True)
            raise failed
        if found[1] is not None:
            raise _retold(0, found[1])
        return made if self.first else pickle.loads(found[0])

    def all_of(self, what: str, mine: _Made) -> list[_Made]:
        """What every process has, in the order of their ranks."""
        if not self.several:
            return [mine]
        self._meet(what)
        return self._objects(what, mine)

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Refuse to go on where processes differ; each fact has a name, and a value that is compared and not shown."""
        found = self.all_of("comparing", dict(facts))
        for rank, theirs in enumerate(found):
            for name in {**found[0], **theirs}:
                if theirs.get(name) != found[0].get(name):
                    raise _known(
                        InputError(
                            f"Process {rank} of the run has not the same {name} as process 0.",
                            why="Every process trains the same model by the same plan, on a part of the same records.",
                            fix="Start all of them with the same code, arguments, files and order of records.",
                        )
                    )

    def summed(self, what: str, values: Tensor) -> Tensor:
        """The sum of ``values`` over the processes, in each of them. Sensitive."""
        if self.several:
            self._meet(what)
            self._run(what, lambda: dist.all_reduce(values, group=self._group_for(values)))
        return values

    def scattered_sum(self, values: Tensor) -> Tensor:
        """A share, that of this process, of the sum of ``values``, whose length is a multiple of ``size``: sensitive,
        and added in double precision. Between ``meet`` and it nothing may fail.
        """
        theirs = torch.empty_like(values)  # with all_to_all: gloo takes three times as long to reduce and scatter
        self._run("adding", lambda: dist.all_to_all_single(theirs, values, group=self._group_for(values)))
        return theirs.view(self.size, -1).sum(0, dtype=torch.float64)

    def gathered(self, part: Tensor) -> Tensor:
        """The parts of all processes, one behind the other."""
        whole = torch.empty(len(part) * self.size, dtype=part.dtype, device=part.device)
        parts = list(whole.chunk(self.size))
        self._run("gathering", lambda: dist.all_gather(parts, part, group=self._group_for(part)))
        return whole

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Give all ``tensors`` the values they have in the first process."""
        if not self.several:
            return
        self._meet("copying")
        for tensor in tensors:
            value = tensor.detach().contiguous()
            raw = value.reshape(-1).view(torch.uint8)
            self._run("copying", functools.partial(dist.broadcast, raw, 0, group=self._group_for(raw)))
            if not self.first:
                tensor.detach().copy_(value)

    def _group_for(self, values: Tensor) -> Any:
        """Who carries ``values``: on the processor the own group, elsewhere that of the user, such as NCCL."""
        return self._group if values.device.type == "cpu" else dist.group.WORLD

    def _meet(self, what: str, number: int = 0, error: BaseException | None = None) -> list[int]:
        """The ``number`` of every process, when all are at ``what`` and none has an ``error``."""
        if not self.several:
            return [number]
        mine = torch.tensor([error is not None, zlib.crc32(what.encode()), number], dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self._run(what, lambda: dist.all_gather(found, mine, group=self._group))
        failed, places, numbers = torch.stack(found).unbind(1)
        if bool(failed.any()):
            told = self._objects("failing", None if error is None else _told(error))
            if error is not None:
                setattr(error, _TOLD, True)
                return []
            raise next(_retold(rank, each) for rank, each in enumerate(told) if each is not None)
        if bool((places != places[0]).any()):
            raise _known(
                RankError(
                    f"The processes of the run are at different places of the program; this one is at {what!r}.",
                    why="They would wait for one another for ever.",
                    fix="Run the same program in every process: what only one of them does must not train.",
                )
            )
        return [int(each) for each in numbers]

    def _objects(self, what: str, mine: _Made) -> list[_Made]:
        found: list[Any] = [None] * self.size
        self._run(what, lambda: dist.all_gather_object(found, mine, group=self._group))
        return found

    def _run(self, what: str, collective: Callable[[], object]) -> None:
        """Run a collective of torch; when it fails, the others are gone."""
        try:
            if self._lost:
                raise RuntimeError("an earlier exchange has failed")
            collective()
        except (RuntimeError, ValueError) as error:
            self._lost = True
            raise _known(
                RankError(
                    f"A process of the run has ended or does not answer (at {what!r}). Nothing more was released.",
                    why="A release needs the sums of all processes.",
                    fix=f"Look at what the others wrote, and resume the run. The time to wait is {timeout()} seconds; "
                    f"the environment variable {TIMEOUT} sets it.",
                )
            ) from error


ONE = Ranks()
"""A run of one process."""

_joined: list[tuple[Any, Ranks]] = []
"""The group of torch that was joined last, and what came of it."""


def joined() -> Ranks:
    """The processes that ``torch.distributed`` has been initialised for; ``ONE`` where it has not.

    All of them must call it at the same place of the program when they do so first.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return ONE
    if not _joined or _joined[0][0] is not dist.group.WORLD:
        try:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout()))
        except RuntimeError as error:
            raise cannot_meet(error) from error
        _joined[:] = [(dist.group.WORLD, Ranks(dist.get_rank(), dist.get_world_size(), group))]
    return _joined[0][1]


@atexit.register
def leave() -> None:
    """Let go of the group: its threads abort the process if they outlive Python."""
    while _joined:
        _joined.pop()[1]._group = None


def together(work: Callable[_P, _Made]) -> Callable[_P, _Made]:
    """``work``, which all processes do at the same time: what is raised in one of them is raised in all."""

    @functools.wraps(work)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _Made:
        with joined().guarded():
            return work(*args, **kwargs)

    return run


def cannot_meet(error: Exception) -> RankError:
    """The error of a process that has found no others."""
    first = str(error).splitlines()[0]
    return RankError(
        f"The processes of the run cannot meet: {first}",
        why="One of them was not started, has ended, or cannot be reached.",
        fix="Start as many as were announced, and check address and port. They are waited for "
        f"{timeout()} seconds; the environment variable {TIMEOUT} sets it.",
    )


def timeout() -> int:
    """How many seconds a process that does not answer is waited for."""
    given = os.environ.get(TIMEOUT, str(_SECONDS))
    if not given.isdecimal() or not int(given):
        raise InputError(f"{TIMEOUT} is {given!r}.", fix="Set it to a whole number of seconds.")
    return int(given)


def code_digest() -> str:
    """A digest of the code of AdaDP and of the version of torch: what computes a step."""
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """A digest of the values of ``tensors``, to be compared and not to be shown."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _told(error: BaseException) -> _Told:
    return type(error).__name__, error.written if isinstance(error, AdaDPError) else None


def _retold(rank: int, told: _Told) -> AdaDPError:
    """The error of another process, as it is raised here."""
    name, written = told
    if written is None:
        return _known(
            RankError(
                f"Process {rank} of the run has failed: {name}.",
                why="No process goes on without the others. Its words are left out, because they may show records.",
                fix="Look at what it wrote to standard error.",
            )
        )
    kind = getattr(errors, name, RankError)
    what, why, fix = written
    if rank:
        what = f"In process {rank} of the run: {what}"
    return _known((RankError if kind is errors.UnreachableTarget else kind)(what, why=why, fix=fix))


def _known(error: AdaDPError) -> AdaDPError:
    error.told = True
    return error
