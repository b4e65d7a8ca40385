"""The moments accountant, as its paper has it."""

from __future__ import annotations

import math

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.app.accounting.renyi import log_moment
from adadp.events import Event


class MomentsAccountant(Accountant):
    """The moments accountant of Abadi et al. 2016: whole orders lambda <= 32 and the tail bound of its Theorem 2."""

    name = "moments"
    status = Status.PROVED

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        moment = log_moment(self.name, counts)
        value, order = min(((moment(order) - math.log(delta)) / order, order) for order in range(1, 33))
        return Bracket(value, value, f"lambda = {order}")

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        moment = log_moment(self.name, counts)
        least, order = min((moment(order) - order * epsilon, order) for order in range(1, 33))
        value = math.exp(min(least, 0.0))
        return Bracket(value, value, f"lambda = {order}")
