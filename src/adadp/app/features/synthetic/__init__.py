"""Stages whose statistics come from synthetic images, so that they cost no privacy and no real image is in them."""

from adadp.app.features.synthetic.components import SyntheticPca
from adadp.app.features.synthetic.deep_patches import DeepPatches
from adadp.app.features.synthetic.log_scattering import LogScattering
from adadp.app.features.synthetic.patches import Patches
from adadp.app.features.synthetic.source import Reference, SyntheticImages, SyntheticStage

__all__ = ["DeepPatches", "LogScattering", "Patches", "Reference", "SyntheticImages", "SyntheticPca", "SyntheticStage"]
