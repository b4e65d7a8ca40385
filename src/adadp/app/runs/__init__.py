"""The folder of a run, with its configuration, ledger, metrics, certificate, checkpoint and model.

What is promised
    * A file is replaced as a whole or not at all: written beside itself, forced to the disk, renamed. An error, a full
      disk or a kill at any moment leaves the previous version, whole.
    * Tensors come back with the same bits, or the file is refused: a SHA-256 over everything in it is checked.
    * No pickle: what is read is JSON, TOML and safetensors, none of which can run code.
    * Opening a folder that another process is writing disturbs nothing.

What is not promised
    * One writer at a time. The ledger in the folder has the lock; a run takes it before it writes anything else.
    * The checksums are no signature: who can write the folder can replace a file and its checksum.
"""

from adadp.app.runs.confusion import ClassCounts
from adadp.app.runs.evaluated import Evaluated
from adadp.app.runs.folder import Checkpoint, RunFolder, certificate_digest
from adadp.app.runs.metrics import coarse_seconds
from adadp.app.runs.optimizer_state import flatten_optimizer, restore_optimizer

__all__ = [
    "Checkpoint",
    "ClassCounts",
    "Evaluated",
    "RunFolder",
    "certificate_digest",
    "coarse_seconds",
    "flatten_optimizer",
    "restore_optimizer",
]
