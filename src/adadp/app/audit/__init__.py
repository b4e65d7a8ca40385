"""Does the code do what the certificate says? Neighbour replay, and attacks that prove lower bounds on epsilon."""

from adadp.app.audit.attack import Audit, audit_method
from adadp.app.audit.canary import Canary, FinalLoss
from adadp.app.audit.dirac import Dirac
from adadp.app.audit.epsilon_bounds import lower_bound
from adadp.app.audit.released import Released
from adadp.app.audit.replay import neighbour_replay
from adadp.app.audit.trials import Experiment, Subject, Trials, optimizer_by_name, run_trials

__all__ = [
    "Audit",
    "Canary",
    "Dirac",
    "Experiment",
    "FinalLoss",
    "Released",
    "Subject",
    "Trials",
    "audit_method",
    "lower_bound",
    "neighbour_replay",
    "optimizer_by_name",
    "run_trials",
]
