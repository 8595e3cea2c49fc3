"""The kernel of top_p: what stays is what sorting says, whatever the rows and the threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.test_nucleus import sorted_threshold
from triolet.model import nucleus
from triolet.model.native.library import Library
from triolet.model.native.nucleus import NucleusKernel
from triolet.model.sampling import SamplingRows, sample


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    scales=st.lists(st.sampled_from([0.0, 0.05, 1, 3, 9, 60]), min_size=1, max_size=5),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.95, 0.999]),
    floor=st.sampled_from([-np.inf, -3.0, -0.5]),
    steps=st.sampled_from([0, 4]),
    width=st.sampled_from([1, 7, 1000, 16_385]),
    threads=st.integers(1, 2),
)
def test_the_kernel_keeps_what_sorting_keeps(
    library: Library,
    seed: int,
    scales: list[float],
    top_p: float,
    floor: float,
    steps: int,
    width: int,
    threads: int,
) -> None:
    """Peaked, flat and equal rows, with ties, masked tokens and floors; rows that are not named stay as they are."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((len(scales) + 1, width)) * np.array([*scales, 1])[:, None]
    if steps:
        logits = np.round(logits * steps) / steps
    logits[:, rng.integers(0, width, width // 9)] = -np.inf
    logits[:, 0] = logits.max(1)
    padded = np.zeros((len(logits), width + 5), np.float32)
    padded[:, :width] = logits - logits.max(1, keepdims=True)
    scaled = padded[:, :width]
    floors = np.full(len(logits), floor, np.float32)
    weights = np.exp(scaled)
    nucleus.keep_from(weights, scaled, floors)
    expected, before = weights.copy(), weights.copy()
    least, _, room = sorted_threshold(scaled, floors, top_p)
    nucleus.keep_from(expected, scaled, least)
    rows = np.arange(len(scales))[::-1]
    NucleusKernel(library, num_threads=threads)(weights, scaled, rows, np.full(len(rows), top_p))
    sure = room[: len(scales)] > 1e-6
    assert np.array_equal(weights[: len(scales)][sure], expected[: len(scales)][sure])
    assert np.array_equal(weights[-1], before[-1])


@pytest.fixture
def with_kernel(library: Library) -> Iterator[None]:
    before = nucleus.kernel()
    nucleus.use(NucleusKernel(library, num_threads=2))
    yield
    nucleus.use(before)


@pytest.mark.usefixtures("with_kernel")
def test_tokens_are_those_that_numpy_draws() -> None:
    """The same draws, also where some rows have no top_p and some have other filters."""
    torch.manual_seed(3)
    logits = torch.randn(24, 4099) * torch.linspace(0.2, 6, 24)[:, None]
    rows = SamplingRows(
        temperature=np.full(24, 1.3),
        top_k=np.array([0, 300, 0] * 8),
        top_p=np.array([0.9, 0.8, 1.0, 0.95] * 6),
        min_p=np.array([0.0, 0.0, 0.001] * 8),
        seeds=np.arange(24, dtype=np.uint64),
        positions=np.arange(24),
    )
    by_kernel, _ = sample(logits.clone(), rows)
    nucleus.use(None)
    by_numpy, _ = sample(logits.clone(), rows)
    assert by_kernel.tolist() == by_numpy.tolist()


def test_rows_that_do_not_fit_are_refused(library: Library) -> None:
    """Before anything is touched."""
    weights = np.ones((2, 8), np.float32)
    kernel = NucleusKernel(library, num_threads=1)
    for rows in ([2], [-1]):
        with pytest.raises(AssertionError, match="no such row"):
            kernel(weights, np.zeros_like(weights), np.array(rows), np.ones(1))
    with pytest.raises(AssertionError, match="weights of shape"):
        kernel(weights, np.zeros((2, 9), np.float32), np.array([0]), np.ones(1))
    assert (weights == 1).all()
