"""A ``transformers.Trainer`` that trains privately.

The Trainer keeps its loop: optimizer, learning-rate schedule, evaluation, callbacks and checkpoints. What it no longer
does is draw batches and compute gradients. Its loader hands out empty batches, and ``training_step`` releases a private
gradient in their place.

    in the Trainer                          here
    ======================================  ===================================================================
    per_device_train_batch_size times       the expected batch; ``per_device_train_batch_size`` records are computed
    gradient_accumulation_steps             at once at most
    max_grad_norm                           unused: gradients are clipped record by record, at ``clip_norm``
    the training loss                       not computed: it would be a release that nobody pays for. Logs have the
                                            epsilon so far in its place
    the data collator                       called with one record at a time; it pads to one public length, unless
                                            ``lengths`` are given
    eval_dataset                            as ever; it must be public
    resume_from_checkpoint                  goes on with the ledger; steps after the checkpoint stay charged, and the
                                            run ends that many steps early
    output_dir                              has ``adadp/``, the run folder with the certificate, when ``train`` ends
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from adadp.app.loop import PrivateGradients
from adadp.app.sources import Collated, Padded
from adadp.clipping import ClipRule
from adadp.errors import BudgetExceeded, InputError
from adadp.integrations.runs import begin, planned, spent
from adadp.plan import Plan

FOLDER = "adadp"
"""The folder of the run inside of ``output_dir``; the Trainer keeps files of its own beside it."""

_NOT_TOLD = {"loss", "train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}
"""What a Trainer logs of the training records: their loss, which is never computed, and exact times."""

_TOKENS = {"ForMaskedLM", "ForTokenClassification"}


def record_losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss of each record by its ``labels``, as the model's own loss is defined for a batch of one.

    Sequences (causal and masked language models, token classification): the mean over the record's own labelled tokens,
    those that are not -100. Classification: cross-entropy; of several labels, binary cross-entropy. One output and
    labels that are no integers: squared error.
    """
    labels = inputs["labels"]
    kind = getattr(model, "loss_type", None)
    causal = labels.dim() == 2 and not labels.is_floating_point() and kind not in _TOKENS
    more = {"use_cache": False} if causal else {}
    logits: Tensor = model(**{name: value for name, value in inputs.items() if name != "labels"}, **more).logits.float()
    if labels.is_floating_point():
        if logits.shape[-1] > 1:
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").flatten(1).mean(1)
        return (logits.flatten(1).squeeze(1) - labels.flatten()).square()
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    if causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    by_token: Tensor = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return by_token.sum(1) / (labels != -100).sum(1).clamp(min=1)


class PrivateTrainer(Trainer):
    """``Trainer`` within (``epsilon``, ``delta``) differential privacy of the records of ``train_dataset``.

    ``clip_norm`` is the l2 bound of one record's gradient, or a clip rule. ``record_losses(model, inputs)`` returns one
    loss per record, where the one above does not fit the model. ``lengths`` are public lengths that texts of unequal
    length are padded to, each to the smallest that holds it (``adadp.Padded``). ``record`` says on the certificate
    what one record is. ``seed`` makes a rehearsal, without privacy. ``private_settings`` go to ``PrivateGradients``.
    """

    def __init__(
        self,
        *arguments: Any,
        epsilon: float,
        delta: float,
        clip_norm: float | ClipRule = 1.0,
        record_losses: Callable[[nn.Module, Mapping[str, Tensor]], Tensor] = record_losses,
        lengths: Sequence[int] | None = None,
        record: str | None = None,
        private_settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.private: PrivateGradients | None = None
        """The run; None before the first step."""
        self._budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "clip_norm": clip_norm}
        self._record_losses, self._record, self._lengths = record_losses, record, lengths
        self._settings = {**(private_settings or {}), "seed": seed}
        self._resumed = False
        self._refuse()
        self._plan(1)  # a budget that cannot be met is found now

    @property
    def run_folder(self) -> Path:
        """Where the certificate is after ``train``."""
        return Path(str(self.args.output_dir)) / FOLDER

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **named: Any) -> TrainOutput:
        """As the Trainer's; the run folder is complete when this returns."""
        self._resumed = bool(resume_from_checkpoint)
        if not self._resumed and (self.run_folder / "ledger.jsonl").exists():
            raise InputError(
                f"There is a private run in {self.run_folder}.",
                why="A second run on the same records is charged to a ledger of its own.",
                fix="Pass resume_from_checkpoint=True to go on with it, or another output_dir.",
            )
        try:
            done = super().train(resume_from_checkpoint, *arguments, **named)
            if self.private is None:
                raise InputError("The training made no step.", fix="Check max_steps and num_train_epochs.")
            self.private.save(self.run_folder, record=self._record)
        finally:
            if self.private is not None:
                self.private.close()
        told = {name: value for name, value in done.metrics.items() if name not in _NOT_TOLD}
        return TrainOutput(done.global_step, float("nan"), told)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Empty batches, as many as an epoch has: the records are drawn by ``training_step``."""
        plan = self._plan(1)
        batches = plan.sampler.steps_per_epoch * self.args.gradient_accumulation_steps
        return DataLoader(range(batches), collate_fn=_nothing)  # type: ignore[arg-type]  # numbers of batches

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Release a private gradient, once for all batches that the Trainer would accumulate; the loss is 0."""
        model.train()
        if self.accelerator.sync_gradients:
            if self.private is None:
                self.private = self._begun(model)
            try:
                self.private.release()
            except BudgetExceeded:  # steps were charged and lost before the run was resumed
                self.control.should_training_stop = True
        return torch.zeros((), device=self.args.device)

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """What the Trainer logs, without what it would log of the training records."""
        kept = {name: value for name, value in logs.items() if name not in _NOT_TOLD}
        if self.private is not None and len(kept) < len(logs):
            kept |= spent(self.private)
        if kept:
            super().log(kept, *arguments, **named)

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Nothing: every record's gradient was clipped, and the noise must not be scaled with the norm of the sum."""

    def _plan(self, steps: int) -> Plan:
        batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        data: Any = self.train_dataset
        return planned(len(data), batch_size=batch, steps=steps, **self._budget)

    def _begun(self, model: nn.Module) -> PrivateGradients:
        settings = {"chunk_size": self.args.per_device_train_batch_size} | self._settings
        resumed_at = self.state.global_step if self._resumed else None
        plan = self._plan(self.state.max_steps)
        return begin(model, self._records(), self._losses, plan, self.run_folder, resumed_at=resumed_at, **settings)

    def _losses(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._record_losses(model, inputs)

    def _records(self) -> Dataset[Any]:
        """The training records, each collated alone, so that none is padded by the length of another."""
        data, collate = self.train_dataset, self.data_collator
        if hasattr(data, "column_names"):
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")

        def tensors(records: list[Any]) -> dict[str, Tensor]:
            return {name: value for name, value in collate(records).items() if isinstance(value, Tensor)}

        return Collated(data, tensors) if self._lengths is None else Padded(data, self._lengths, collate_fn=tensors)

    def _refuse(self) -> None:
        """Refuse what would be ignored, or would look at records in another way."""
        args = self.args
        wrong = {
            "more than one process or GPU": args.world_size > 1 or args.n_gpu > 1,
            "deepspeed or fsdp": bool(args.deepspeed) or self.is_fsdp_enabled,
            "fp16, whose loss scaling has no loss here (use bf16)": args.fp16,
            "auto_find_batch_size": args.auto_find_batch_size,
            "label_smoothing_factor (put it into record_losses)": args.label_smoothing_factor != 0,
            "group_by_length": getattr(args, "train_sampling_strategy", "random") != "random"
            or getattr(args, "group_by_length", False),
            "compute_loss_func (pass record_losses)": self.compute_loss_func is not None,
            "include_num_input_tokens_seen": args.include_num_input_tokens_seen != "no",
            "model_init": self.model_init is not None,
        }
        found = [name for name, is_wrong in wrong.items() if is_wrong]
        if found:
            raise InputError(
                f"PrivateTrainer does not take {', '.join(found)}.",
                why="Batches are drawn and gradients computed record by record, in one process.",
                fix="Leave it out.",
            )
        if self.train_dataset is None or not hasattr(self.train_dataset, "__len__"):
            raise InputError(
                "PrivateTrainer needs a train_dataset with a length.",
                why="Every record is drawn by a coin of its own.",
                fix="Pass a map-style data set.",
            )
        if self.eval_dataset is self.train_dataset:
            raise InputError(
                "The eval_dataset is the train_dataset.",
                why="Evaluations have no noise: what they say about the training records would not be private.",
                fix="Evaluate on public records.",
            )


def _nothing(_: list[int]) -> dict[str, Tensor]:
    """A batch without records."""
    return {}
