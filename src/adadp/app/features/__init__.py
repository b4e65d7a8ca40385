"""What runs before the network: fixed transforms, layers trained on public data, and projections released privately."""

from adadp.app.features.base import FixedStage, ReleasedStage, Shape, Stage
from adadp.app.features.chain import WithFeatures, raw_bound, stage_module, statement, tensors_of, whole_module
from adadp.app.features.extraction import CacheKey, Progress, computed, extract, extract_both
from adadp.app.features.registry import NONE, STAGES, features_text, fixed_first, parse_features, released_stages

__all__ = [
    "NONE",
    "STAGES",
    "CacheKey",
    "FixedStage",
    "Progress",
    "ReleasedStage",
    "Shape",
    "Stage",
    "WithFeatures",
    "computed",
    "extract",
    "extract_both",
    "features_text",
    "fixed_first",
    "parse_features",
    "raw_bound",
    "released_stages",
    "stage_module",
    "statement",
    "tensors_of",
    "whole_module",
]
