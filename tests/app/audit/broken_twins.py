"""Private gradients with one thing wrong each. An attack that does not notice them proves nothing by its silence."""

from __future__ import annotations

from adadp.app.methods.adadp import AdaDp
from adadp.app.methods.scaled import ScaledSum
from adadp.app.methods.scales import ColumnScales
from adadp.methods import GRADIENT, ClippedSum, DpSgd
from adadp.noise import GaussianMechanism


class HalfTheNoise(GaussianMechanism):
    def release(self, total, *, noise_multiplier, **given):
        return super().release(total, noise_multiplier=noise_multiplier / 2, **given)


class NoNoise(GaussianMechanism):
    def release(self, total, *, noise_multiplier, **given):
        return super().release(total, noise_multiplier=0.0, **given)


class RealisedBatch(DpSgd):
    """Divides by the number of records that were drawn, as Yu et al. 2018 and 2019 do."""

    def query(self, engine, rule, batch_size):
        return _RealisedBatch(engine, rule, batch_size)


class _RealisedBatch(ClippedSum):
    def contribution(self, capture):
        return super().contribution(capture) | {"records": int((~capture.padding).sum())}

    def finalize(self, total):
        self.batch_size = max(1, total.pop("records"))
        return super().finalize(total)


class RawScales(AdaDp):
    """Its scales follow the clipped sums as they are before the noise, as line 23 of Xu et al. 2020 has it."""

    def query(self, engine, rule, batch_size):
        return _RawScales(engine, rule, batch_size, ColumnScales(self, engine.scale_shapes, engine.zeros()))


class _RawScales(ScaledSum):
    def finalize(self, total):
        self._raw = super().finalize(total)[GRADIENT]
        return {GRADIENT: self._raw}

    def to_gradient(self, released, deviation):
        gradients = self._scales.apply(released[GRADIENT])
        self._scales.learn(self._raw, 0.0)
        return {name: value / self.batch_size for name, value in gradients.items()}
