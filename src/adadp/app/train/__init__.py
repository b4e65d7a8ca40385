"""Training: private steps, an optimizer, evaluation, checkpoints, resume, and a certificate in the end.

fitting.py ``fit``: from Python, arguments to a configuration.      session.py ``train``: check everything, then run.
planning.py what a configuration means as numbers.                  run.py the loop.
evaluation.py looks at public test data.                            checkpoints.py save, restore, what is paid already.
optimizers.py by name, or made by the caller.                       stopping.py Ctrl-C, and the seeds of random layers.
verify.py a finished run checked against itself.                    result.py what comes out.
looks.py noise that follows validation records.                     searched.py what a search among settings was.
preparing.py features that are released before the first step.      averaging.py an average of the weights.
boards.py a run on TensorBoard.                                     rehearsal.py what is tried before the first charge.
"""

from adadp.app.train.evaluation import Evaluation, refuse_training_records
from adadp.app.train.fitting import fit
from adadp.app.train.planning import decay_of, plan_of, refuse_large_delta, with_release_noise
from adadp.app.train.result import Status, TrainResult
from adadp.app.train.session import refuse_finished, train
from adadp.app.train.tensorboard import check_board
from adadp.app.train.verify import Check, verify_run

__all__ = [
    "Check",
    "Evaluation",
    "Status",
    "TrainResult",
    "check_board",
    "decay_of",
    "fit",
    "plan_of",
    "refuse_finished",
    "refuse_large_delta",
    "refuse_training_records",
    "train",
    "verify_run",
    "with_release_noise",
]
