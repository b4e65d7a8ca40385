"""A privacy budget for a data set, shared by all runs on it: docs/budget.md."""

from adadp.app.budgets.budget import BudgetFile, DataBudget
from adadp.app.budgets.snapshot import CountedRun, Snapshot, Terms

__all__ = ["BudgetFile", "CountedRun", "DataBudget", "Snapshot", "Terms"]
