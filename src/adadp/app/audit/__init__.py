"""Does the code do what the certificate says? Neighbour replay, and attacks that prove lower bounds on epsilon."""

from adadp.app.audit.attack import ATTACKS, Attack, Audit, audit_method
from adadp.app.audit.canary import Canary
from adadp.app.audit.dirac import Dirac
from adadp.app.audit.epsilon_bounds import LowerBound, lower_bound
from adadp.app.audit.replay import Distance, neighbour_replay
from adadp.app.audit.trials import Experiment, Subject, Trials, View, optimizer_by_name, run_trials

__all__ = [
    "ATTACKS",
    "Attack",
    "Audit",
    "Canary",
    "Dirac",
    "Distance",
    "Experiment",
    "LowerBound",
    "Subject",
    "Trials",
    "View",
    "audit_method",
    "lower_bound",
    "neighbour_replay",
    "optimizer_by_name",
    "run_trials",
]
