"""The small experiments of Xu et al. 2020: laws, oracles, and the numbers that come out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.lab.studies.cosine import QUERY, SENSITIVITY, on_constraint, privacy_sum, sampled_similarity, similarity
from adadp.lab.studies.cosine import study_cosine as study
from adadp.lab.studies.descent import Method, Settings, distance, walk, walk_without_noise
from adadp.lab.studies.deviation import PRINTED, deviations
from adadp.lab.studies.functions import LANDSCAPES, landscape
from adadp.randomness import SeededSource

EVERY_FUNCTION = pytest.mark.parametrize("name", list(LANDSCAPES))
EVERY_METHOD = pytest.mark.parametrize("method", list(Method))
sizes = st.floats(0.1, 100.0)


def noise(steps: int = 150, runs: int = 3, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, runs, 2))


class TestCosine:
    @pytest.mark.parametrize(
        ("noise", "expected"), [((17.0, 8.5), 0.470), ((13.5, 13.5), 0.478), ((12.4, 24.8), 0.399)]
    )
    def test_the_example_of_lemma_1(self, noise, expected):
        found = {choice.noise: choice for choice in study().choices}[noise]
        assert found.exact == pytest.approx(expected, abs=5e-4)
        assert abs(found.sampled - found.exact) < 3 * found.error
        assert found.error < 0.002
        assert found.allowed
        assert abs(found.sampled - found.printed) > 30 * found.error

    def test_noise_in_proportion_does_not_win(self):
        found = study(draws=2)
        assert found.best.similarity > found.equal.similarity > found.proportional.similarity
        assert found.best.ratio == pytest.approx(1.347, abs=2e-3)
        assert found.best.similarity >= max(point.similarity for point in found.curve)

    def test_it_wins_where_the_query_lies_along_the_less_sensitive_coordinate(self):
        """So the verdict is not a constant: what decides is the query, which the noise may not look at."""
        found = study(draws=2, query=(1.0, 30.0))
        assert found.proportional.similarity > found.equal.similarity

    @given(query=st.tuples(sizes, sizes), seed=st.integers(0, 1000))
    def test_without_noise_it_is_one(self, query, seed):
        mean, error = sampled_similarity(query, (0.0, 0.0), draws=10, source=SeededSource(seed))
        assert mean == pytest.approx(1, abs=1e-12)
        assert error == pytest.approx(0, abs=1e-12)

    @given(query=st.tuples(sizes, sizes), noise=st.tuples(sizes, sizes))
    @settings(max_examples=30, deadline=None)
    def test_the_integral_is_what_sampling_tends_to(self, query, noise):
        mean, error = sampled_similarity(query, noise, draws=4000, source=SeededSource(3))
        assert abs(similarity(query, noise) - mean) < 6 * error + 1e-9

    @given(query=st.tuples(sizes, sizes), noise=st.tuples(sizes, sizes), factor=st.floats(0.1, 10))
    @settings(max_examples=30, deadline=None)
    def test_only_the_noise_relative_to_the_query_matters(self, query, noise, factor):
        scaled = similarity((factor * query[0], factor * query[1]), (factor * noise[0], factor * noise[1]))
        assert scaled == pytest.approx(similarity(query, noise), abs=1e-8)
        assert similarity(query[::-1], noise[::-1]) == pytest.approx(similarity(query, noise), abs=1e-8)

    @pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
    def test_equal_noise_has_a_closed_form(self, scale):
        """The mean resultant length of the projected normal: sqrt(pi k / 2) e^-k (I_0(k) + I_1(k)), k = |mu|^2 / 4."""
        from scipy.special import ive

        k = (125 / scale**2) / 4
        expected = math.sqrt(math.pi * k / 2) * (ive(0, k) + ive(1, k))
        assert similarity(QUERY, (scale, scale)) == pytest.approx(expected, abs=1e-9)

    @given(s=st.tuples(sizes, sizes), sigma_star=sizes, ratio=st.floats(0.01, 100))
    def test_the_constraint_is_met_exactly_at_every_ratio(self, s, sigma_star, ratio):
        noise = on_constraint(s, sigma_star, ratio)
        assert noise[0] / noise[1] == pytest.approx(ratio)
        assert privacy_sum(s, noise) == pytest.approx(sigma_star**-2)

    @pytest.mark.parametrize(("factor", "allowed"), [(1.001, True), (0.999, False)])
    def test_a_choice_is_allowed_on_one_side_of_the_constraint_only(self, factor, allowed):
        first, second = on_constraint(SENSITIVITY, 2.0, 1.3)
        (choice,) = study([(factor * first, factor * second)], sigma_star=2.0, draws=2).choices
        assert choice.allowed is allowed
        assert choice.sigma_star == pytest.approx(2.0 * factor)

    def test_printed_figures_belong_to_the_printed_example(self):
        assert [choice.printed for choice in study(draws=2).choices] == [0.52, 0.36, 0.28]
        assert all(choice.printed is None for choice in study(draws=2, query=(10.0, 4.0)).choices)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"query": (0.0, 0.0)}, "query must be finite and not zero"),
            ({"query": (math.inf, 1.0)}, "query must be finite"),
            ({"sensitivity": (12.0, 0.0)}, "sensitivity_2 must be greater than 0"),
            ({"choices": [(0.0, 1.0)]}, "noise_1 must be greater than 0"),
            ({"choices": [(1e-9, 1.0)]}, "cannot be integrated"),
            ({"sigma_star": 0.0}, "sigma_star must be greater than 0"),
            ({"draws": 1}, "draws must be at least 2"),
            ({"seed": -1}, "seed must be at least 0"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, given, message):
        with pytest.raises(InputError, match=message):
            study(**({"draws": 2} | given))


class TestFunctions:
    @EVERY_FUNCTION
    def test_the_gradient_is_the_one_of_the_value(self, name):
        each = landscape(name)
        points = np.random.default_rng(2).uniform(-3, 3, size=(40, 2))
        leaf = torch.tensor(points, requires_grad=True)
        torch_value = _in_torch(name, leaf[:, 0], leaf[:, 1])
        torch_value.sum().backward()
        assert leaf.grad is not None
        np.testing.assert_allclose(each.value(points), torch_value.detach().numpy(), rtol=1e-10, atol=1e-9)
        np.testing.assert_allclose(each.gradient(points), leaf.grad.numpy(), rtol=1e-9, atol=1e-8)

    @EVERY_FUNCTION
    def test_the_minima_are_where_they_are_said_to_be(self, name):
        each = landscape(name)
        minima = np.array(each.minima)
        np.testing.assert_allclose(each.value(minima), each.lowest, atol=1e-9)
        np.testing.assert_allclose(each.gradient(minima), 0, atol=1e-6)
        np.testing.assert_allclose(each.to_minimum(minima), 0)
        near = minima[:, np.newaxis] + np.random.default_rng(4).uniform(-0.5, 0.5, size=(500, 2))
        grid = np.stack(np.meshgrid(np.linspace(-5, 5, 201), np.linspace(-5, 5, 201)), axis=-1)
        lowest = min(each.value(near).min(), each.value(grid).min())
        assert (lowest < each.lowest - 1e-9) == (name == "beale-printed")

    def test_the_printed_beale_falls_without_end(self):
        printed = landscape("beale-printed")
        assert printed.value(np.array([10.0, -10.0])) < -1e11
        assert printed.goal == "stationary point"

    def test_ackley_is_flat_in_the_middle(self):
        assert (landscape("ackley").gradient(np.zeros(2)) == 0).all()

    def test_distance_is_to_the_nearest_minimum(self):
        assert landscape("himmelblau").to_minimum(np.array([3.0, 2.5])) == pytest.approx(0.5)

    def test_an_unknown_one_is_refused_with_the_list(self):
        with pytest.raises(InputError, match=r"Unknown test function 'bale'.*beale.*styblinski-tang"):
            landscape("bale")


def _in_torch(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The textbook formula once more, for autograd."""
    a, b, c = 1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3
    tau = 2 * math.pi
    formulas = {
        "beale": lambda: a**2 + b**2 + c**2,
        "beale-printed": lambda: a**2 + b**2 + c**3,
        "rosenbrock": lambda: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
        "booth": lambda: (x + 2 * y - 7) ** 2 + (2 * x + y - 5) ** 2,
        "himmelblau": lambda: (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2,
        "three-hump-camel": lambda: 2 * x**2 - 1.05 * x**4 + x**6 / 6 + x * y + y**2,
        "matyas": lambda: 0.26 * (x**2 + y**2) - 0.48 * x * y,
        "sphere": lambda: x**2 + y**2,
        "ackley": lambda: (
            -20 * (-0.2 * (0.5 * (x**2 + y**2)).sqrt()).exp()
            - (0.5 * ((tau * x).cos() + (tau * y).cos())).exp()
            + math.e
            + 20
        ),
        "goldstein-price": lambda: (
            (1 + (x + y + 1) ** 2 * (19 - 14 * x + 3 * x**2 - 14 * y + 6 * x * y + 3 * y**2))
            * (30 + (2 * x - 3 * y) ** 2 * (18 - 32 * x + 12 * x**2 + 48 * y - 36 * x * y + 27 * y**2))
        ),
        "styblinski-tang": lambda: 0.5 * sum(v**4 - 16 * v**2 + 5 * v for v in (x, y)),
    }
    return formulas[name]()


def by_the_letter(name: str, method: Method, chosen: Settings, draws: np.ndarray) -> list[tuple[float, float]]:
    """Algorithm 1 with one run, in scalars, line by line of the paper."""
    each = landscape(name)
    theta = list(each.start)
    average, average_raw = [0.0, 0.0], [0.0, 0.0]
    path = []
    for z in draws:
        g = each.gradient(np.array(theta))
        root = [math.sqrt(value) for value in average_raw]
        middle = sum(root) / 2
        is_open = sum((value - middle) ** 2 for value in root) / 2 > 1e-6
        if method is Method.ADADP and is_open:
            s = [chosen.beta * value for value in root]
            std = [chosen.beta * chosen.noise_multiplier * math.sqrt(2 * value) for value in average_raw]
            noisy = [min(max(g[i], -s[i]), s[i]) + std[i] * z[i] for i in range(2)]
        else:
            scale = max(1, math.hypot(*g) / chosen.clip_norm)
            noisy = [g[i] / scale + chosen.clip_norm * chosen.noise_multiplier * z[i] for i in range(2)]
        for i in range(2):
            average[i] = 0.9 * average[i] + 0.1 * noisy[i] ** 2
            average_raw[i] = 0.9 * average_raw[i] + 0.1 * g[i] ** 2
            plain = method is Method.DPSGD
            theta[i] -= (
                chosen.rate * noisy[i] if plain else chosen.adaptive_rate * noisy[i] / math.sqrt(average[i] + 1e-8)
            )
        path.append(tuple(theta))
    return path


class TestDescent:
    @EVERY_METHOD
    @pytest.mark.parametrize("name", ["beale", "sphere", "styblinski-tang"])
    def test_the_walk_is_algorithm_1(self, name, method):
        chosen, draws = Settings(steps=40, noise_multiplier=0.7, clip_norm=3.0, rate=0.03, beta=1.2), noise(40)
        found = walk(landscape(name), method, chosen, draws)
        assert found.shape == (40, 3, 2)
        for run in range(3):
            expected = by_the_letter(name, method, chosen, draws[:, run])
            np.testing.assert_allclose(found[:, run], expected, rtol=1e-9, atol=1e-9)

    @EVERY_METHOD
    def test_noise_of_zeros_and_sigma_zero_are_the_path_without_noise(self, method):
        beale = landscape("beale")
        quiet = walk_without_noise(beale, method, Settings())
        silenced = walk(beale, method, Settings(noise_multiplier=0), noise())
        assert quiet.shape == (150, 1, 2)
        assert (distance(silenced, quiet) == 0).all()
        assert (distance(walk(beale, method, Settings(), noise()), quiet) > 0).all()

    def test_with_equal_coordinates_the_gate_stays_closed(self):
        """On the diagonal of the sphere Var[sqrt(E')] is 0, so that ADADP without noise is ADAL."""
        diagonal = replace(landscape("sphere"), start=(2.0, 2.0))
        same = distance(
            walk_without_noise(diagonal, Method.ADADP, Settings()),
            walk_without_noise(diagonal, Method.ADAL, Settings()),
        )
        assert same == 0

    def test_a_coordinate_that_was_always_zero_is_released_without_noise(self):
        """What makes the published algorithm tell: y has gradient 0, so once the gate is open it does not move."""
        draws = noise(2, 4)
        draws[0] = 0
        path = walk(replace(landscape("sphere"), start=(3.0, 0.0)), Method.ADADP, Settings(steps=2), draws)
        assert (path[:, :, 1] == 0).all()
        assert len(set(path[1, :, 0])) == 4

    @EVERY_METHOD
    def test_at_a_minimum_nothing_moves_without_noise(self, method):
        still = replace(landscape("booth"), start=(1.0, 3.0))
        assert (walk_without_noise(still, method, Settings()) == (1.0, 3.0)).all()

    def test_adal_and_dpsgd_differ_in_the_step_only(self):
        """The first noisy gradients are equal: the steps differ by rate and by sqrt(E) = sqrt(gamma) |g~|."""
        booth, draws, chosen = landscape("booth"), noise(1), Settings(steps=1)
        plain = (walk(booth, Method.DPSGD, chosen, draws)[0] - booth.start) / chosen.rate
        adaptive = (walk(booth, Method.ADAL, chosen, draws)[0] - booth.start) / chosen.adaptive_rate
        np.testing.assert_allclose(adaptive, plain / np.sqrt(0.1 * plain**2 + 1e-8), rtol=1e-12)

    @EVERY_METHOD
    def test_the_default_rates_are_the_best_without_noise(self, method):
        """The rule by which they were chosen, for the two methods the paper compares; ADAL shares that of ADADP."""
        beale = landscape("beale")
        ends = {
            rate: beale.to_minimum(walk_without_noise(beale, method, Settings(rate=rate, adaptive_rate=rate))[-1, 0])
            for rate in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
        }
        best = min(ends, key=ends.__getitem__)
        assert best == (Settings().rate if method is Method.DPSGD else Settings().adaptive_rate)

    @given(seed=st.integers(0, 1000))
    @settings(max_examples=20, deadline=None)
    def test_distance_is_a_distance(self, seed):
        one, two, three = (noise(7, 2, seed + place) for place in range(3))
        assert (distance(one, one) == 0).all()
        np.testing.assert_allclose(distance(one, two), distance(two, one))
        assert (distance(one, three) <= distance(one, two) + distance(two, three) + 1e-12).all()

    def test_distance_is_the_mean_over_the_steps(self):
        path = np.array([[[0.0, 0.0]], [[3.0, 4.0]]])
        assert distance(path, np.zeros_like(path)) == pytest.approx(2.5)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"noise_multiplier": -1},
            {"clip_norm": 0},
            {"rate": 0},
            {"adaptive_rate": math.nan},
            {"beta": -1},
            {"steps": 0},
        ],
    )
    def test_settings_that_make_no_sense_are_refused(self, wrong):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Settings(**wrong)

    @pytest.mark.parametrize("shape", [(150, 2), (149, 3, 2), (150, 3, 3)])
    def test_noise_of_another_shape_is_refused(self, shape):
        with pytest.raises(InputError, match="noise must have the shape"):
            walk(landscape("beale"), Method.ADADP, Settings(), np.zeros(shape))

    @EVERY_METHOD
    def test_numbers_that_overflow_are_refused(self, method):
        with pytest.raises(InputError, match="left the range of numbers"):
            walk_without_noise(replace(landscape("beale"), start=(1e200, 1e200)), method, Settings())


class TestDeviations:
    def test_the_numbers_are_those_of_the_paths(self):
        found = deviations([landscape("beale")], Settings(steps=20), runs=5)
        assert [each.method for each in found] == list(Method)
        for each in found:
            apart = [np.linalg.norm(each.noisy[:, run] - each.quiet, axis=1).mean() for run in range(5)]
            assert each.mean == pytest.approx(np.mean(apart))
            assert each.spread == pytest.approx(np.std(apart, ddof=1))
            assert each.error == pytest.approx(each.spread / math.sqrt(5))
            assert each.quiet_end == pytest.approx(math.dist(each.quiet[-1], (3, 0.5)))
            assert each.noisy_end == pytest.approx(np.mean([math.dist(p, (3, 0.5)) for p in each.noisy[-1]]))

    def test_what_comes_out_on_beale(self):
        """Not the printed 0.21 and 0.90. Means over 200 runs; the tolerance is over three standard errors."""
        found = {each.method: each for each in deviations([landscape("beale")])}
        assert found[Method.ADADP].mean == pytest.approx(0.65, abs=0.05)
        assert found[Method.ADAL].mean == pytest.approx(0.775, abs=0.05)
        assert found[Method.DPSGD].mean == pytest.approx(0.64, abs=0.12)
        assert (found[Method.ADADP].printed, found[Method.DPSGD].printed) == (0.21, 0.90)
        assert found[Method.ADAL].printed is None
        assert len(PRINTED) == 2

    def test_a_clip_of_24_brings_the_printed_pair_and_a_clip_of_1_turns_it_round(self):
        chosen = Settings(noise_multiplier=0.3, clip_norm=24.0, adaptive_rate=0.05)
        wide = {each.method: each.mean for each in deviations([landscape("beale")], chosen)}
        assert wide[Method.ADADP] == pytest.approx(0.19, abs=0.03)
        assert wide[Method.DPSGD] == pytest.approx(0.90, abs=0.04)
        narrow = {each.method: each.mean for each in deviations([landscape("beale")], replace(chosen, clip_norm=1.0))}
        assert narrow[Method.DPSGD] < 0.5 * narrow[Method.ADADP]

    def test_the_seed_and_the_name_make_the_noise(self):
        def first(*names: str, seed: int = 0) -> np.ndarray:
            chosen = [landscape(name) for name in names]
            return deviations(chosen, Settings(steps=5), runs=2, seed=seed)[-1].noisy

        assert (first("beale") == first("sphere", "beale")).all()
        assert (first("beale") != first("beale", seed=1)).any()
        same_place = replace(landscape("sphere"), start=(3.0, 1.0), name="another")
        alone = deviations([landscape("sphere"), same_place], Settings(steps=5), runs=2)
        assert (alone[0].noisy != alone[3].noisy).any()

    def test_one_run_or_no_function_is_refused(self):
        with pytest.raises(InputError, match="runs must be at least 2"):
            deviations([landscape("beale")], runs=1)
        with pytest.raises(InputError, match="No test function"):
            deviations([])
