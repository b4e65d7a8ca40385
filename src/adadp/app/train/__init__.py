"""Training: private steps, an optimizer, evaluation, checkpoints, resume, and a certificate in the end.

fitting.py ``fit``: from Python, arguments to a configuration.      session.py ``train``: check everything, then run.
planning.py what a configuration means as numbers.                  run.py the loop.
evaluation.py looks at public test data.                            checkpoints.py save, restore, what is paid already.
verify.py what a finished run is checked for here.                   stopping.py Ctrl-C, and the seeds of random layers.
validation_noise.py noise that follows validation records.          search_spec.py what a search among settings was.
feature_release.py features released before the first step.         averaging.py an average of the weights.
tensorboard.py a run on TensorBoard.                                rehearsal.py what is tried before the first charge.
result.py what comes out.
"""

from adadp.app.train.evaluation import Evaluation, refuse_training_records
from adadp.app.train.fitting import fit
from adadp.app.train.planning import plan_of, refuse_large_delta, with_release_noise
from adadp.app.train.result import Status, TrainResult
from adadp.app.train.session import refuse_finished, train
from adadp.app.train.tensorboard import check_board
from adadp.app.verify import verify_run

__all__ = [
    "Evaluation",
    "Status",
    "TrainResult",
    "check_board",
    "fit",
    "plan_of",
    "refuse_finished",
    "refuse_large_delta",
    "refuse_training_records",
    "train",
    "verify_run",
    "with_release_noise",
]
