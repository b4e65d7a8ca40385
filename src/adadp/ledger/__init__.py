"""HOW OFTEN each event was released: an append-only, checksummed file that is charged before the release it counts.

What is promised
    * ``Ledger.charge`` has written the charge and forced it to the disk (fsync) before it returns; the caller releases
      only then. A crash at any moment leaves the count too high or exact, never too low.
    * A charge asks the budget rule first; a refused charge writes nothing.
    * Bytes once written are never removed or rewritten, not even those of a line that a crash tore: the next writer
      closes it with a ``torn`` record that counts it as spent.
    * One writer at a time: a lock between processes and objects, a check of the process id (a forked child cannot
      charge), and a look at the file before each charge that notices anybody else's bytes.
    * Every line holds the SHA-256 of itself and of the line before, so a line that is edited, dropped, moved or doubled
      is found and named.

What is not promised
    * Whole lines cut off the END leave a shorter chain that holds. Only a witness outside the file can tell: keep
      ``head`` and ``length`` (a certificate pins them) and give ``expected_head`` to ``read_ledger``.
    * The checksums are no signature: who can write the file can forge a whole new one. A pinned head tells here too.
    * A disk that answers fsync before the bytes are safe can lose what was acknowledged.
"""

from adadp.ledger.budget import BudgetRule, FixedBudget, PlannedBudget, budget_like
from adadp.ledger.follower import LedgerCopy
from adadp.ledger.reader import LedgerRecord, read_ledger
from adadp.ledger.writer import Ledger

__all__ = [
    "BudgetRule",
    "FixedBudget",
    "Ledger",
    "LedgerCopy",
    "LedgerRecord",
    "PlannedBudget",
    "budget_like",
    "read_ledger",
]
