"""The loop: private steps, an optimizer, evaluation, checkpoints, resume, and a stop before the budget is passed."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadp.accounting import accountant
from adadp.clipping import ClipRule, clip_rule
from adadp.config import TrainConfig
from adadp.errors import BudgetExceeded, InputError, Interrupted
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.losses import Loss, binary_cross_entropy, check_labels, cross_entropy, find_loss
from adadp.plan import Plan
from adadp.records import Data, Records
from adadp.report.certificate import make_certificate, plain_words
from adadp.runs import RunFolder, certificate_digest, flatten_optimizer, restore_optimizer
from adadp.schedules import Schedule, Uniform, parse_schedule
from adadp.step import DEFAULT_MEMORY, PrivateGradients


@dataclass(frozen=True)
class Status:
    """Where a run is, for whoever shows it. Public."""

    step: int
    steps: int
    test_accuracy: float | None
    epsilon_so_far: Callable[[], float | None]
    """Computed when asked: about 30 ms."""


@dataclass(frozen=True)
class TrainResult:
    """A trained model and its certificate."""

    model: nn.Module
    certificate: dict[str, Any]
    test_accuracy: float | None
    seconds: float
    plan: Plan
    out: Path | None

    @property
    def epsilon(self) -> float | None:
        """None: nothing is guaranteed."""
        epsilon: float | None = self.certificate["epsilon"]
        return epsilon

    def describe(self) -> str:
        """The certificate in plain words."""
        return plain_words(self.certificate)


def plan_of(config: TrainConfig, records: int) -> Plan:
    """The plan ``config`` asks for on ``records`` records; every number it needs must be in it."""
    shape: dict[str, Any] = {
        "records": config.records or records,
        "lot_size": config.lot,
        "steps": config.steps,
        "epochs": config.epochs,
        "clip": _rule(config),
        "sampling": config.sampling,
        "neighbours": config.neighbours,
    }
    if config.epsilon is not None:
        assert config.delta is not None
        return Plan.for_budget(epsilon=config.epsilon, delta=config.delta, accountant_name=config.accountant, **shape)
    assert config.sigma is not None
    return Plan.of_noise(noise=config.sigma, **shape)


def train(
    model: nn.Module,
    data: Data,
    config: TrainConfig,
    *,
    loss: str | Loss = "cross-entropy",
    test: tuple[Tensor, Tensor] | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    folder: RunFolder | None = None,
    resume: bool = False,
    record_unit: str | None = None,
    watch: Callable[[Status], None] | None = None,
) -> TrainResult:
    """Train ``model`` as ``config`` says, and certify it.

    ``test`` is public data for the accuracy; ``evaluate(model)`` replaces it. With a ``folder`` everything is kept
    there and a stopped run can ``resume``. Nothing is charged before all input has been checked.
    """
    device = torch.device(config.device)
    model = model.to(device).train()
    chosen = find_loss(loss)
    check_labels(model, chosen, data, device)
    records = Records(data, device)
    plan = plan_of(config, len(records))
    optimizer = make_optimizer(model, config)
    with ExitStack() as stack:
        run = _Run(model, config, plan, optimizer, folder, evaluate or _accuracy(chosen, test, device), watch)
        ledger = stack.enter_context(run.open_ledger(resume, stack))
        run.private = PrivateGradients(
            model,
            records,
            chosen,
            plan,
            ledger,
            seed=config.seed,
            chunk_size=config.chunk_size,
            memory_limit=DEFAULT_MEMORY if config.memory_limit_mb is None else config.memory_limit_mb << 20,
        )
        if resume:
            run.restore()
        run.loop()
        return run.finish(record_unit)


def fit(
    model: nn.Module,
    data: Data,
    *,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    lot_size: int,
    clip: float | str | ClipRule = 1.0,
    lr: float | str | Schedule = 0.1,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: str | Loss = "cross-entropy",
    test: tuple[Tensor, Tensor] | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    sampling: str = "poisson",
    neighbours: str | None = None,
    accountant: str = "pld",
    public_records: int | None = None,
    seed: int | None = None,
    chunk_size: int | str = "auto",
    device: str = "cpu",
    out: str | Path | None = None,
    resume: bool = False,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    allow_nonprivate: bool = False,
    watch: Callable[[Status], None] | None = None,
) -> TrainResult:
    """Train ``model`` privately on ``data`` by DP-SGD, within (``epsilon``, ``delta``) or with a given noise ``sigma``.

    ``data`` is a tuple of tensors such as (features, labels), or a map-style Dataset. ``loss`` is a name or a function
    ``loss(model, *batch)`` that returns one number per record. ``clip`` is the l2 bound of one record's gradient or a
    clip rule; ``lr`` a number or a schedule over the epochs. ``seed`` None is secure randomness. ``public_records`` is
    used in place of ``len(data)`` where the exact number must stay hidden. With ``out`` the run is kept in a folder,
    and ``resume=True`` goes on with the one that is there.
    """
    config = TrainConfig(
        data="python",
        model="python",
        epsilon=epsilon,
        sigma=sigma,
        delta=delta,
        epochs=epochs,
        steps=steps,
        lot=lot_size,
        clip=None if not isinstance(clip, (int, float)) else float(clip),
        clip_rule="flat" if isinstance(clip, (int, float)) else str(clip),
        lr=float(lr) if isinstance(lr, (int, float)) else None,
        lr_schedule=None if isinstance(lr, (int, float)) else str(lr),
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        sampling=sampling,
        neighbours=neighbours,
        accountant=accountant,
        seed=seed,
        chunk_size=chunk_size,
        device=device,
        records=public_records,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        allow_nonprivate=allow_nonprivate,
    )
    folder = None
    if out is not None:
        folder = RunFolder.open(out) if resume else RunFolder.create(out, config)
        if folder.config != config:
            raise InputError(
                f"The run in {out} has another configuration.",
                why="A resumed run must be the one that was planned and charged.",
                fix="Call fit with the arguments the run was begun with.",
            )
    elif resume:
        raise InputError("resume=True needs out.", fix="Pass the folder of the run as out.")
    return train(
        model, data, config, loss=loss, test=test, evaluate=evaluate, folder=folder, resume=resume, watch=watch
    )


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer ``config`` names, over the trained parameters. It sees released gradients only."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    lr = _lr_schedule(config).value_at(0)
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=config.weight_decay)


class _Run:
    """One run in this process: everything that changes while it goes on."""

    private: PrivateGradients

    def __init__(  # noqa: PLR0917
        self,
        model: nn.Module,
        config: TrainConfig,
        plan: Plan,
        optimizer: torch.optim.Optimizer,
        folder: RunFolder | None,
        evaluate: Callable[[nn.Module], float] | None,
        watch: Callable[[Status], None] | None,
    ) -> None:
        self.model, self.config, self.plan, self.optimizer = model, config, plan, optimizer
        self.folder, self.evaluate, self.watch = folder, evaluate, watch
        self.rate = _lr_schedule(config)
        self.paid = 0
        """Rounds the ledger held when this process took over."""
        self.elapsed = 0.0
        self.accuracy: float | None = None
        self.every = config.checkpoint_every or max(1, plan.steps // 10)

    def open_ledger(self, resume: bool, stack: ExitStack) -> Ledger:
        budget = PlannedBudget(self.plan.event())
        if self.folder is None:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="adadp-"))
            return Ledger.create(Path(place) / "ledger.jsonl", budget=budget)
        if resume and self.folder.ledger_path.exists():
            ledger = Ledger.open(self.folder.ledger_path, budget=budget)
            self.paid = sum(ledger.charges.values())
            return ledger
        return Ledger.create(self.folder.ledger_path, budget=budget)

    def restore(self) -> None:
        """Take up the last checkpoint. What was released after it is repeated exactly, or given up.

        A seeded run repeats the steps the ledger has and the checkpoint has not: same lots, same noise, same values, so
        nothing new is released and nothing is charged. A secure run cannot repeat them: it goes on after them.
        """
        assert self.folder is not None
        found = self.folder.load_checkpoint()
        step = 0
        clean = False
        if found is not None:
            step, clean = found.step, bool(found.state["clean"])
            tensors = found.tensors
            self.model.load_state_dict(_under("model", tensors))
            restore_optimizer(self.optimizer, _under("optimizer", tensors), found.state["optimizer"])
            lots = (
                {}
                if found.state["round"] is None
                else {"round": found.state["round"], "arrangement": tensors["lots/arrangement"]}
            )
            self.private.restore({"step": step, "clip": found.state["clip"], "lots": lots})
            self.elapsed = found.state["elapsed"]
        self.folder.rewind_metrics(step)
        nothing_since = clean and self.paid == self.plan.rounds_before(step)
        if not self.private.source.reproducible and not nothing_since:
            per_round = self.plan.sampler.steps_per_round
            after = max(self.paid, self.plan.rounds_before(step)) * per_round
            self.private.restore({"step": max(step, after), "clip": dict(self.private.clip_state), "lots": {}})
        if clean:
            self.checkpoint(clean=False)

    def loop(self) -> None:
        started = time.perf_counter()
        private, plan = self.private, self.plan
        per_epoch = plan.sampler.steps_per_epoch
        every_epochs = self.config.evaluate_every
        with _stop_requests() as stop, _seeded_layers(self.config.seed) as seed_layers:
            while private.step < plan.steps and not stop.is_set():
                step = private.step
                self.set_rate(self.rate.value_at(plan.epoch_of(step)))
                seed_layers(step)
                try:
                    private.release(paid=plan.rounds_before(step + 1) <= self.paid and private.source.reproducible)
                except BudgetExceeded:  # charges lost in a crash: the run ends that much earlier
                    break
                self.optimizer.step()
                done = step + 1
                if done % per_epoch == 0 or done == plan.steps:
                    epoch = -(-done // per_epoch)
                    look = every_epochs is not None and epoch % every_epochs == 0 and done < plan.steps
                    self.log(done, epoch, look, started)
                if self.watch is not None:
                    self.watch(Status(done, plan.steps, self.accuracy, self.epsilon_so_far))
                if done % self.every == 0 and done < plan.steps:
                    self.checkpoint(clean=False, started=started)
            self.elapsed += time.perf_counter() - started
            if stop.is_set() and private.step < plan.steps:
                self.stopped()

    def stopped(self) -> None:
        if self.folder is None:
            raise Interrupted(
                f"Stopped after {self.private.step} of {self.plan.steps} steps.",
                why="The run has no folder, so it cannot be resumed.",
                fix="Give it a folder to keep its work (out).",
            )
        self.checkpoint(clean=True)
        raise Interrupted(
            f"Stopped after {self.private.step} of {self.plan.steps} steps. Everything is saved in {self.folder.path}.",
            fix=f"Go on with: adadp train --resume {self.folder.path}",
        )

    def log(self, step: int, epoch: int, look: bool, started: float) -> None:
        record: dict[str, Any] = {"step": step, "epoch": epoch, "epsilon": self.epsilon_so_far()}
        if look and self.evaluate is not None:
            self.accuracy = self.evaluate(self.model)
            record["test_accuracy"] = self.accuracy
        record["seconds"] = round(self.elapsed + time.perf_counter() - started, 3)
        if self.folder is not None:
            self.folder.log(record)

    def epsilon_so_far(self) -> float | None:
        event = self.private.ledger.event()
        if event is None or self.plan.noise is None or self.config.delta is None:
            return None
        return accountant(self.config.accountant).epsilon(event, self.config.delta).epsilon

    def set_rate(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def checkpoint(self, *, clean: bool, started: float | None = None) -> None:
        if self.folder is None:
            return
        state = self.private.state()
        optimizer_tensors, optimizer_state = flatten_optimizer(self.optimizer)
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors.items()}
        if state["lots"]:
            tensors["lots/arrangement"] = state["lots"]["arrangement"]
        self.folder.save_checkpoint(
            self.private.step,
            tensors,
            {
                "optimizer": optimizer_state,
                "clip": state["clip"],
                "round": state["lots"].get("round"),
                "elapsed": self.elapsed + (0.0 if started is None else time.perf_counter() - started),
                "clean": clean,
            },
            ledger_head=self.private.ledger.head,
        )

    def finish(self, record_unit: str | None) -> TrainResult:
        self.model.eval()
        accuracy = None if self.evaluate is None else self.evaluate(self.model)
        tensors = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        certificate = make_certificate(
            config=self.config,
            plan=self.plan,
            ledger=read_ledger(self.private.ledger.path),
            randomness=self.private.source.describe(),
            model=tensors,
            steps_done=self.private.step,
            record_unit=record_unit,
            notes=self.private.notes,
        )
        if self.folder is not None:
            if self.evaluate is not None:
                self.folder.log({"step": self.private.step, "final": True, "test_accuracy": accuracy})
            self.folder.write_certificate(certificate)
            epsilon = certificate["epsilon"]
            metadata = {
                "certificate_digest": certificate_digest(certificate),
                "private": str(certificate["private"]).lower(),
                "epsilon": "none" if epsilon is None else repr(epsilon),
                "delta": "none" if certificate["delta"] is None else repr(certificate["delta"]),
                "neighbours": certificate["neighbours"],
            }
            self.folder.save_model(tensors, metadata)
            self.folder.checkpoint_path.unlink(missing_ok=True)
        out = None if self.folder is None else self.folder.path
        return TrainResult(self.model, certificate, accuracy, self.elapsed, self.plan, out)


def _rule(config: TrainConfig) -> ClipRule:
    return clip_rule(config.clip_rule, None if ":" in config.clip_rule else config.clip)


def _lr_schedule(config: TrainConfig) -> Schedule:
    if config.lr_schedule is not None:
        return parse_schedule(config.lr_schedule)
    assert config.lr is not None
    return Uniform(config.lr)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def _accuracy(
    loss: Loss, test: tuple[Tensor, Tensor] | None, device: torch.device
) -> Callable[[nn.Module], float] | None:
    """The share of ``test`` a classifier gets right, for the losses that train one."""
    if test is None:
        return None
    if loss not in (cross_entropy, binary_cross_entropy):
        raise InputError(
            "Accuracy on test data is known for cross-entropy losses only.",
            fix="Pass evaluate=, a function of the model that returns a number, in place of test.",
        )

    def measure(model: nn.Module) -> float:
        training = model.training
        model.eval()
        right = 0
        with torch.no_grad():
            for features, labels in zip(torch.split(test[0], 1000), torch.split(test[1], 1000), strict=True):
                scores = model(features.to(device))
                found = scores.argmax(1) if loss is cross_entropy else (scores.reshape(len(labels)) > 0).long()
                right += int((found.cpu() == labels.cpu()).sum())
        model.train(training)
        return right / len(test[1])

    return measure


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Set when Ctrl-C or a polite kill arrives: the step at hand is finished first. A second Ctrl-C does not wait."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(*_: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _seeded_layers(seed: int | None) -> Iterator[Callable[[int], None]]:
    """Random layers (dropout) of a seeded run start every step from (seed, step), so a resumed run repeats them."""

    def start(step: int) -> None:
        if seed is not None:
            torch.manual_seed((seed * 1_000_003 + step) % 2**63)

    with torch.random.fork_rng(enabled=seed is not None):
        yield start
