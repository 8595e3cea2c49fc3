"""The threshold of top_p, found without sorting a vocabulary: the one that sorting finds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.nucleus import MOST_LIKELY, keep_from, top_p_threshold

WIDTH = 16_384


def sorted_threshold(scaled: Any, floor: Any, top_p: float) -> tuple[Any, Any, Any]:
    """The threshold by sorting, the weight that is wanted, and how far it is from the two cumulated ones around it, as
    a part of the whole: where that is tiny, rounding decides."""
    falling = -np.sort(-scaled, axis=1)
    weights = np.exp(falling).astype(np.float64) * (falling >= floor[:, None])
    cumulated = weights.cumsum(1)
    wanted = cumulated[:, -1] * top_p
    last = np.minimum((cumulated < wanted[:, None]).sum(1), scaled.shape[1] - 1)
    rows = np.arange(len(scaled))
    room = np.abs(cumulated - wanted[:, None]).min(1) / cumulated[:, -1]
    return np.maximum(falling[rows, last], floor), wanted, room


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scales=st.lists(st.sampled_from([0.05, 0.5, 1, 2, 3, 5, 9]), min_size=1, max_size=5),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.95, 0.99]),
    floor=st.sampled_from([-np.inf, -3.0, -0.5]),
    steps=st.sampled_from([0, 4]),
    width=st.sampled_from([7, MOST_LIKELY, WIDTH, WIDTH + 1]),
)
def test_the_threshold_is_that_of_sorting(
    seed: int, scales: list[float], top_p: float, floor: float, steps: int, width: int
) -> None:
    """Peaked and flat rows in one call, with ties (values in steps), masked tokens and the floors of other filters."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((len(scales), width)) * np.array(scales)[:, None]
    if steps:
        logits = np.round(logits * steps) / steps
    logits[:, rng.integers(0, width, width // 9)] = -np.inf
    logits[:, 0] = logits.max(1)
    scaled = (logits - logits.max(1, keepdims=True)).astype(np.float32)
    floors = np.full(len(scales), floor, np.float32)
    weights = np.exp(scaled)
    keep_from(weights, scaled, floors)
    expected, wanted, room = sorted_threshold(scaled, floors, top_p)
    found, known = top_p_threshold(scaled, weights, floors, wanted)
    sure = known & (room > 1e-6)
    assert np.array_equal(found[sure], expected[sure])


@pytest.mark.parametrize("scale", [0.5, 1, 2, 4])
def test_hardly_a_row_has_to_be_sorted(scale: float) -> None:
    """Of those that a model might give."""
    rng = np.random.default_rng(7)
    logits = rng.standard_normal((64, WIDTH)) * scale
    scaled = (logits - logits.max(1, keepdims=True)).astype(np.float32)
    floors = np.full(64, -np.inf, np.float32)
    _, wanted, _ = sorted_threshold(scaled, floors, 0.95)
    _, known = top_p_threshold(scaled, np.exp(scaled), floors, wanted)
    assert known.sum() >= 60
