"""Checks for parts that anybody contributes: ``check_method(Mine())``, ``check_clip_rule(Mine(1.0))``."""

from adadp.app.conformance import check_clip_rule, check_method

__all__ = ["check_clip_rule", "check_method"]
