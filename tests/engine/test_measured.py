"""A cost fitted to measured steps: it gives back what made them, and never less than nothing."""

import random

import pytest

from triolet.engine.cost import StepShape
from triolet.engine.measured import MeasuredCost, fit_cost

TRUE = MeasuredCost(knots=(0, 8, 64, 512), seconds=(0.002, 0.004, 0.03, 0.25), per_sampled_s=1e-4, per_pair_s=2e-8)


def draw_shape(rng: random.Random) -> StepShape:
    tokens = rng.choice([1, 2, 3, 5, 8, 13, 40, 64, 100, 300, 512, 700])
    sampled = rng.randint(0, min(tokens, 32))
    context = rng.randint(tokens, 4000)
    return StepShape(num_tokens=tokens, num_sampled=sampled, num_context=context, num_pairs=tokens * context)


def test_a_formula_is_found_again() -> None:
    """From 300 steps of known times: within a thousandth for others, beyond the last knot too."""
    rng = random.Random(1)
    found = fit_cost([(shape, TRUE(shape)) for shape in (draw_shape(rng) for _ in range(300))], TRUE.knots)
    for _ in range(100):
        shape = draw_shape(rng)
        assert found(shape) == pytest.approx(TRUE(shape), rel=1e-3)


def test_noise_makes_no_part_negative_and_more_tokens_take_no_less() -> None:
    """Steps that were slower or faster by a fifth: the fit is within a tenth, and rises."""
    rng = random.Random(2)
    shapes = [draw_shape(rng) for _ in range(400)]
    found = fit_cost([(shape, TRUE(shape) * rng.uniform(0.8, 1.2)) for shape in shapes], TRUE.knots)
    assert min(*found.seconds, found.per_sampled_s, found.per_pair_s) >= 0
    assert list(found.seconds) == sorted(found.seconds)
    errors = sorted(abs(found(shape) / TRUE(shape) - 1) for shape in shapes)
    assert errors[len(errors) * 9 // 10] < 0.1


def test_the_sum_of_the_times_is_kept() -> None:
    """Every tenth step took five times as long: the fitted times of all add up to the measured ones."""
    rng = random.Random(3)
    measured = [(shape, TRUE(shape) * rng.choice([1] * 9 + [5])) for shape in (draw_shape(rng) for _ in range(600))]
    found = fit_cost(measured)
    assert sum(found(shape) for shape, _ in measured) == pytest.approx(
        sum(seconds for _, seconds in measured), rel=0.05
    )


def test_nothing_measured_is_no_cost() -> None:
    """And neither are knots that do not rise."""
    with pytest.raises(ValueError, match="no step was measured"):
        fit_cost([])
    with pytest.raises(ValueError, match="rising knots"):
        MeasuredCost(knots=(0, 0), seconds=(0.0, 1.0), per_sampled_s=0.0, per_pair_s=0.0)
