"""A callback that makes ``lightning.Trainer`` train privately, with automatic optimisation.

Lightning keeps its loop: optimizer, schedulers, validation, callbacks and checkpoints. Its training batches are empty,
and where it would compute gradients of a loss the callback releases a private gradient.

    in Lightning                        here
    ==================================  =========================================================================
    ``training_step(batch, batch_idx)``  returns one loss per record, ``[batch]``, in place of their mean
    ``self.log`` in ``training_step``   ``InputError``: it would publish what nobody pays for
    the loader's batch size             the expected batch
    ``fit(ckpt_path=...)``              goes on with the ledger; steps after the checkpoint stay charged, and the run
                                        ends that many steps early
    the end of ``fit``                  the folder holds the run with its certificate
    several devices, half precision,    ``InputError``
    accumulated batches, manual
    optimisation
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from adadp.app.loop import PrivateGradients
from adadp.clipping import ClipRule
from adadp.errors import BudgetExceeded, InputError
from adadp.integrations.runs import begin, of_loader, planned, spent
from adadp.plan import Plan


class Private(lightning.Callback):
    """Trains within (``epsilon``, ``delta``) differential privacy of the records of ``loader``.

    Pass it among the callbacks of the Trainer, and its ``batches`` to ``fit`` in place of the loader. ``folder``
    becomes the run folder. ``settings`` go to ``PrivateGradients``; ``record`` says what one record is.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        folder: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        clip_norm: float | ClipRule = 1.0,
        record: str | None = None,
        **settings: Any,
    ) -> None:
        self._data, self._batch_size = of_loader(loader)
        self._budget = {"epsilon": epsilon, "delta": delta, "clip_norm": clip_norm}
        self._folder, self._record, self._settings = folder, record, settings
        self.private: PrivateGradients | None = None
        """The run; None before it begins."""
        self.batches: DataLoader[Any] = DataLoader(
            range(self._plan(1).sampler.steps_per_epoch),  # type: ignore[arg-type]  # numbers of batches
            collate_fn=_nothing,
        )
        """Empty batches, as many as an epoch has."""

    def _plan(self, steps: int) -> Plan:
        return planned(len(self._data), batch_size=self._batch_size, steps=steps, **self._budget)  # type: ignore[arg-type]

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Check everything, and open the ledger."""
        self._refuse(trainer, pl_module)
        step, backward = pl_module.training_step, self._release
        resumed_at = trainer.global_step or None

        def losses(module: lightning.LightningModule, *batch: Any) -> Tensor:
            whole = batch if len(batch) > 1 or isinstance(self._data, TensorDataset) else batch[0]
            module.log = module.log_dict = _refuse_log  # type: ignore[method-assign]
            try:
                found: Any = step(whole, 0)
            finally:
                del module.log, module.log_dict
            return found  # type: ignore[no-any-return]  # the engine checks what it is

        plan = self._plan(int(trainer.estimated_stepping_batches))
        self.private = begin(
            pl_module,
            self._data,
            losses,
            plan,
            self._folder,
            resumed_at=resumed_at,
            **self._settings,
        )
        zero = torch.zeros((), device=pl_module.device, requires_grad=True)
        pl_module.training_step = lambda *_: zero.clone()  # type: ignore[method-assign]
        pl_module.backward = lambda *_: backward(trainer)  # type: ignore[method-assign]

    def _release(self, trainer: lightning.Trainer) -> None:
        """The place of a backward pass: gradients have just been set to zero, and the optimizer comes next."""
        assert self.private is not None
        try:
            self.private.release()
        except BudgetExceeded:  # steps were charged and lost before the run was resumed
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:  # noqa: ARG002
        """Log what the run has cost so far."""
        assert self.private is not None
        pl_module.log_dict(spent(self.private))

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:  # noqa: ARG002
        """Save the run, and give the module its own methods back."""
        self._give_back(pl_module)
        assert self.private is not None
        self.private.save(self._folder, record=self._record)

    def on_exception(
        self,
        trainer: lightning.Trainer,  # noqa: ARG002
        pl_module: lightning.LightningModule,
        exception: BaseException,  # noqa: ARG002
    ) -> None:
        """Close the ledger: another process may resume the run."""
        self._give_back(pl_module)
        if self.private is not None:
            self.private.close()

    def _give_back(self, pl_module: lightning.LightningModule) -> None:
        for name in ("training_step", "backward"):
            vars(pl_module).pop(name, None)

    def _refuse(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        loader = trainer.train_dataloader
        wrong = {
            "more than one device": trainer.world_size > 1,
            f"precision {trainer.precision}": trainer.precision not in ("32-true", "64-true"),
            "accumulate_grad_batches (make the batch of the loader larger)": trainer.accumulate_grad_batches != 1,
            "manual optimisation": not pl_module.automatic_optimization,
            "a run without an end (give max_epochs or max_steps)": trainer.estimated_stepping_batches == float("inf"),
            "other training batches than its own (pass private.batches to fit)": loader is not self.batches,
        }
        found = [name for name, is_wrong in wrong.items() if is_wrong]
        if found:
            raise InputError(
                f"The callback Private does not take {', '.join(found)}.",
                why="A release is the gradient of one batch that is drawn here, in one process.",
                fix="Leave it out.",
            )


def _nothing(_: list[int]) -> dict[str, Tensor]:
    """A batch without records."""
    return {}


def _refuse_log(*_: Any, **__: Any) -> None:
    raise InputError(
        "training_step logs something.",
        why="What it computes is about private records, and a log is a release without noise.",
        fix="Log in validation_step, on public records; the callback logs epsilon.",
    )
