"""What a budget buys: calibration, targets, plans that meet them, the noise of a search.

And other accountants than the core's ``pld``, with budgets for noise that is chosen during the run.
"""

from adadp.app.accounting.filters import Filter, RdpFilter, ZcdpFilter

__all__ = ["Filter", "RdpFilter", "ZcdpFilter"]
