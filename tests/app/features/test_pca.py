"""DP-PCA: what one record moves, what the noise is, and that the projection finds the directions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from releasing import released

from adadp.app.features.pca import Pca
from adadp.errors import InputError


def matrix(query: torch.Tensor, size: int) -> torch.Tensor:
    """The symmetric matrix behind the released triangle."""
    upper = torch.triu_indices(size, size)
    full = torch.zeros(size, size, dtype=torch.float64)
    full[upper[0], upper[1]] = torch.where(upper[0] == upper[1], query, query / math.sqrt(2))
    return full + full.triu(1).T


class TestTheQuery:
    def test_it_is_the_sum_of_outer_products_of_unit_rows(self) -> None:
        records = torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0))
        rows = torch.nn.functional.normalize(records.reshape(50, 6).double())
        found = matrix(Pca(dim=2, noise_multiplier=1.0).query(records)["covariance"], 6)
        assert torch.allclose(found, rows.T @ rows, atol=1e-12)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]), st.integers(0, 7))
    def test_one_record_moves_it_by_at_most_its_bound(self, seed: int, scale: float, hot: int) -> None:
        stage = Pca(dim=2, noise_multiplier=1.0)
        generator = torch.Generator().manual_seed(seed)
        records = torch.randn(40, 8, generator=generator) * scale
        records[0] = torch.zeros(8)
        records[0, hot] = scale  # a one-hot record reaches the bound
        difference = stage.query(records)["covariance"] - stage.query(records[1:])["covariance"]
        assert 0.999 < difference.norm() <= stage.l2_bound

    def test_the_bound_is_reached_by_every_record_not_only_on_the_axes(self) -> None:
        record = torch.ones(1, 9)
        assert Pca(dim=2, noise_multiplier=1.0).query(record)["covariance"].norm().item() == pytest.approx(
            1.0, abs=1e-12
        )

    @pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
    def test_a_zero_or_non_finite_record_counts_as_zero(self, value: float) -> None:
        stage = Pca(dim=2, noise_multiplier=1.0)
        records = torch.randn(5, 4)
        strange = torch.cat([records, torch.full((1, 4), value)])
        assert torch.equal(stage.query(strange)["covariance"], stage.query(records)["covariance"])

    def test_a_record_too_small_for_its_square_does_not_pass_the_bound(self) -> None:
        """Near 1e-160 squares lose their digits, and a norm computed from them is wrong."""
        stage = Pca(dim=2, noise_multiplier=1.0)
        shape = torch.tensor([[1.0, 0.7, 0.3, 0.0]], dtype=torch.float64)
        found = [float(stage.query(shape * 10.0 ** (-tenth / 10))["covariance"].norm()) for tenth in range(3200)]
        assert max(found) <= stage.l2_bound
        assert min(found[:1000]) > 0.999

    def test_chunks_do_not_change_it(self) -> None:
        records = torch.randn(5000, 3, generator=torch.Generator().manual_seed(1))
        rows = torch.nn.functional.normalize(records.double())
        assert torch.allclose(matrix(Pca(dim=1, noise_multiplier=1.0).query(records)["covariance"], 3), rows.T @ rows)


class TestTheNoise:
    def test_it_is_symmetric_with_half_the_variance_off_the_diagonal(self) -> None:
        stage = Pca(dim=2, noise_multiplier=3.0)
        nothing = torch.zeros(2, 300)
        noise = matrix(released(stage, nothing)["covariance"], 300)
        assert torch.equal(noise, noise.T)
        upper = torch.triu_indices(300, 300, offset=1)
        assert noise[upper[0], upper[1]].std().item() == pytest.approx(3 / math.sqrt(2), rel=0.02)
        assert noise.diagonal().std().item() == pytest.approx(3.0, rel=0.15)


class TestTheProjection:
    def records(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        basis = torch.linalg.qr(torch.randn(20, 20, generator=generator)).Q
        sizes = torch.tensor([5.0, 3.0, 2.0] + [0.05] * 17)
        return torch.randn(4000, 20, generator=generator) * sizes @ basis.T

    def test_it_finds_the_directions_through_the_noise(self) -> None:
        records = self.records()
        stage = Pca(dim=3, noise_multiplier=4.0)
        components = stage.learned(released(stage, records), (20,))["components"].double()
        rows = torch.nn.functional.normalize(records.double())
        true = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -3:]
        assert torch.linalg.svdvals(components.T @ true).min() > 0.99
        assert torch.allclose(components.T @ components, torch.eye(3, dtype=torch.float64), atol=1e-6)

    def test_features_have_the_asked_norm_each_by_itself(self) -> None:
        records = self.records()
        stage = Pca(dim=3, noise_multiplier=4.0, norm=9.0)
        module = stage.module(stage.learned(released(stage, records), (20,)))
        features = module(records)
        assert features.shape == (4000, 3)
        assert torch.allclose(features.norm(dim=1), torch.tensor(9.0), rtol=1e-5)
        assert torch.allclose(module(records[5:6]), features[5:6], atol=1e-5)
        assert module(torch.zeros(1, 20)).abs().max() == 0

    def test_whitening_evens_out_components_and_leaves_noise_alone(self) -> None:
        records = self.records()
        stage = Pca(dim=5, noise_multiplier=4.0, whiten=True)
        components = stage.learned(released(stage, records), (20,))["components"]
        sizes = components.norm(dim=0)
        rows = torch.nn.functional.normalize(records)
        spread = (rows @ components).pow(2).mean(0).sqrt()
        assert spread[:3].max() / spread[:3].min() < 1.05
        # The last two are noise: not blown up beyond the edge of the noise's own spectrum.
        largest = torch.linalg.eigvalsh(rows.T @ rows)[-1]
        assert sizes[4] <= math.sqrt(largest / (4.0 * math.sqrt(40))) * 1.05

    def test_it_is_a_function_of_the_release_alone(self) -> None:
        stage = Pca(dim=3, noise_multiplier=4.0)
        release = released(stage, self.records())
        one, two = stage.learned(release, (20,)), stage.learned(dict(release), (20,))
        assert torch.equal(one["components"], two["components"])


class TestBadInput:
    def test_noise_that_is_not_chosen_has_no_multiplier(self) -> None:
        with pytest.raises(InputError, match="noise of pca"):
            _ = Pca(dim=3).known_noise_multiplier

    @pytest.mark.parametrize(
        "options", [{"dim": 0}, {"noise_multiplier": 0.0}, {"noise_multiplier": -1.0}, {"norm": 0.0}]
    )
    def test_refused(self, options: dict[str, float]) -> None:
        with pytest.raises(InputError):
            Pca(**options)  # type: ignore[arg-type]

    def test_more_components_than_values(self) -> None:
        with pytest.raises(InputError, match="at most 12"):
            Pca(dim=13, noise_multiplier=1.0).output_shape((3, 2, 2))

    def test_a_covariance_that_does_not_fit(self) -> None:
        with pytest.raises(InputError, match="covariance"):
            Pca(dim=13, noise_multiplier=1.0).output_shape((3, 64, 64))
