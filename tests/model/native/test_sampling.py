"""The kernel that samples: its tokens are those of sorting and of torch, whatever the threads and the batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triolet.model import row_kernels
from triolet.model.native.library import Library
from triolet.model.native.sampling import NativeSampler
from triolet.model.sampling import Best, SamplingRows, sample

LOWEST = float(np.finfo(np.float32).min)
ROUNDING = 2e-6
"""A part of the whole weight that sums in float32 may be wrong by."""


def same_rows(count: int, **fields: float) -> SamplingRows:
    """So many rows that ask for the same."""
    return SamplingRows(
        temperature=np.full(count, fields.get("temperature", 1.0)),
        top_k=np.full(count, int(fields.get("top_k", 0))),
        top_p=np.full(count, fields.get("top_p", 1.0)),
        min_p=np.full(count, fields.get("min_p", 0.0)),
        seeds=np.arange(count, dtype=np.uint64),
        positions=np.arange(count),
    )


def kept_by(logits: Any, fields: dict[str, float], slack: float) -> Any:
    """Which tokens the filters leave, by sorting; `slack` is added to top_p."""
    with np.errstate(over="ignore"):  # a masked logit, or a tiny temperature
        scaled = (logits - logits.max()) / np.float32(fields.get("temperature", 1.0))
    weights = np.exp(scaled.astype(np.float64))
    falling = -np.sort(-scaled)
    kept = np.isfinite(scaled)
    if fields.get("min_p", 0.0) > 0:
        kept &= scaled >= np.float32(np.log(fields["min_p"]))
    top_k = int(fields.get("top_k", 0))
    if 0 < top_k < len(logits):
        kept &= scaled >= falling[top_k - 1]
    top_p = fields.get("top_p", 1.0)
    if top_p < 1:
        left = -np.sort(-scaled[kept])
        mass = np.exp(left.astype(np.float64)).cumsum()
        needed = int((mass < (top_p + slack) * mass[-1]).sum())
        kept &= scaled >= left[min(needed, len(left) - 1)]
    return kept, np.where(kept, weights, 0)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.0, 0.05, 1, 3, 9, 60]),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([1e-30, 0.3, 0.8, 1.5, 100]),
            "top_k": st.sampled_from([1, 40, 64, 65, 300, 5000]),
            "top_p": st.sampled_from([1e-9, 0.1, 0.5, 0.95, 0.999]),
            "min_p": st.sampled_from([1e-9, 0.02, 0.3, 1.0]),
        },
    ),
    steps=st.sampled_from([0, 0, 4]),
    low=st.sampled_from([-np.inf, LOWEST, -1e4]),
    width=st.sampled_from([1, 7, 255, 1000, 16_385]),
    threads=st.integers(1, 2),
)
def test_what_stays_and_what_is_drawn_are_those_of_sorting(
    library: Library,
    seed: int,
    scale: float,
    fields: dict[str, float],
    steps: int,
    low: float,
    width: int,
    threads: int,
) -> None:
    """Peaked, flat and equal logits, with ties and masked ones; a comb of draws over what is left of each."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(width) * scale).astype(np.float32)
    if steps:
        logits = np.round(logits * steps) / steps
    logits[rng.integers(0, width, width // 9)] = low
    logits[0] = max(logits.max(), 0)
    count = 33
    uniform = np.linspace(0, 1, count, endpoint=False)
    wide = torch.zeros(count, width + 5)
    wide[:, :width] = torch.from_numpy(logits)
    sampler = NativeSampler(library, num_threads=threads)
    tokens, usable = sampler.sample(wide[:, :width], same_rows(count, **fields), uniform, None)
    assert usable.all()
    most, weights = kept_by(logits, fields, ROUNDING)
    least, _ = kept_by(logits, fields, -ROUNDING)
    assert most[tokens].all()
    if (most == least).all():  # else a sum in another order may keep other tokens
        cumulated = weights.cumsum() / weights.sum()
        upper, lower = cumulated[tokens], cumulated[tokens] - weights[tokens] / weights.sum()
        assert (upper > uniform - ROUNDING).all()
        assert (lower <= uniform + ROUNDING).all()


@pytest.mark.parametrize("logit", [-9.0, -6.2, -4.8, -1.0, -0.2])
@pytest.mark.parametrize("top_p", [0.999999, 0.9999999, 1 - 1e-8, 1 - 1e-12])
def test_a_share_that_rounded_sums_do_not_reach_takes_all(library: Library, top_p: float, logit: float) -> None:
    """One token, and many equal ones beside it: nothing is left of the row before this one."""
    sampler, width, uniform = NativeSampler(library, num_threads=1), 1500, np.array([0.5, 0.7, 0.999])
    logits = np.full(width, logit, np.float32)
    logits[3] = 0
    sampler.sample(torch.linspace(-9, 3, width)[None], same_rows(1, top_p=0.5), uniform[:1], None)
    tokens, _ = sampler.sample(torch.from_numpy(logits).repeat(3, 1), same_rows(3, top_p=top_p), uniform, None)
    weights = np.exp(logits.astype(np.float64))
    expected = np.searchsorted(weights.cumsum() / weights.sum(), uniform, side="right")
    assert (np.abs(tokens - expected) <= 1).all(), "in a sum of another order the next one may be meant"


@pytest.fixture
def unlike_rows() -> tuple[torch.Tensor, SamplingRows]:
    """Greedy rows and every kind of filter, on peaked and flat logits."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(48, 4099, generator=generator) * torch.linspace(0.2, 6, 48)[:, None]
    return logits, SamplingRows(
        temperature=np.array([1.3, 0.0, 0.7, 1.0] * 12),
        top_k=np.array([0, 0, 0, 40, 300, 5000] * 8),
        top_p=np.array([0.9, 0.8, 1.0, 0.95, 0.1, 1.0, 0.999, 1.0] * 6),
        min_p=np.array([0.0, 0.0, 0.001] * 16),
        seeds=np.arange(48, dtype=np.uint64) * 7919,
        positions=np.arange(48),
    )


@pytest.fixture
def no_sampler() -> Iterator[None]:
    before = row_kernels.in_use()
    row_kernels.use(None)
    yield
    row_kernels.use(before)


@pytest.mark.usefixtures("no_sampler")
def test_tokens_are_those_that_torch_draws(library: Library, unlike_rows: tuple[torch.Tensor, SamplingRows]) -> None:
    """The same draws of the same seeds, with the largest logits known and unknown, by one thread and by two."""
    logits, rows = unlike_rows
    by_torch, _ = sample(logits.clone(), rows)
    top = logits.max(-1)
    best = Best(tokens=top.indices.numpy(), logits=top.values.numpy())
    for threads in (1, 2):
        row_kernels.use(NativeSampler(library, num_threads=threads))
        for known in (None, best):
            before = logits.clone()
            tokens, usable = sample(logits, rows, known)
            assert usable.all()
            assert tokens.tolist() == by_torch.tolist()
            assert torch.equal(logits, before), "it only reads"


@pytest.mark.usefixtures("no_sampler")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_known_best_logit_that_is_no_number_makes_its_row_unusable(
    library: Library, unlike_rows: tuple[torch.Tensor, SamplingRows], bad: float
) -> None:
    """Greedy or drawn; the others get their tokens."""
    logits, rows = unlike_rows
    top = logits.max(-1)
    best = Best(tokens=top.indices.numpy(), logits=top.values.numpy())
    row_kernels.use(NativeSampler(library, num_threads=2))
    expected, _ = sample(logits, rows, best)
    for row in range(8):
        logits[row, 4097] = best.logits[row] = bad
    tokens, usable = sample(logits, rows, best)
    assert usable.tolist() == [False] * 8 + [True] * 40
    assert tokens[8:].tolist() == expected[8:].tolist()


def test_rows_that_do_not_fit_are_refused(library: Library) -> None:
    """Before anything is touched. No rows are no fault."""
    sampler = NativeSampler(library, num_threads=1)
    uniform = np.zeros(2)
    for logits in (torch.zeros(2, 8, dtype=torch.float64), torch.zeros(8, 2).T, torch.zeros(8)):
        with pytest.raises(AssertionError, match="logits of"):
            sampler.sample(logits, same_rows(2), uniform, None)
    with pytest.raises(AssertionError, match="another length"):
        sampler.sample(torch.zeros(2, 8), same_rows(3), uniform, None)
    short = Best(tokens=np.zeros(1, np.int64), logits=np.zeros(1, np.float32))
    with pytest.raises(AssertionError, match="another length"):
        sampler.sample(torch.zeros(2, 8), same_rows(2), uniform, short)
    with pytest.raises(AssertionError, match="no logits have such a shape"):
        sampler.sample(torch.zeros(2, 0), same_rows(2), uniform, None)
    assert [len(column) for column in sampler.sample(torch.zeros(0, 8), same_rows(0), uniform[:0], None)] == [0, 0]


def test_penalties_that_do_not_fit_are_refused(library: Library) -> None:
    """Nothing is changed."""
    sampler, logits = NativeSampler(library, num_threads=1), torch.ones(2, 8)
    one, each = np.ones(1, np.int64), np.full((1, 3), 2, np.float32)
    for places, ids, message in (([2], [0], "no such row"), ([-1], [0], "no such row"), ([1], [8], "no such token")):
        with pytest.raises(AssertionError, match=message):
            sampler.penalise(logits, np.array(places), one, np.array(ids), np.ones(1, np.float32), each)
    with pytest.raises(AssertionError, match="differ in length"):
        sampler.penalise(logits, one, one, np.array([1, 2]), np.ones(2, np.float32), each)
    assert (logits == 1).all()
    sampler.penalise(logits, one, one, np.array([3]), np.ones(1, np.float32), each)
    assert logits[1].tolist() == [1, 1, 1, 1 / 2 - 2 - 2, 1, 1, 1, 1]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [1, 16, 17, 600])
def test_of_equals_the_largest_have_the_lowest_ids(library: Library, k: int, threads: int) -> None:
    """In every row of a slice; more than a row has are refused."""
    values = torch.randint(0, 40, (5, 4100), generator=torch.Generator().manual_seed(k)).float()[:, :4097]
    sampler = NativeSampler(library, num_threads=threads)
    found, ids = sampler.largest(values, k)
    expected = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found, expected.values[:, :k])
    assert torch.equal(ids, expected.indices[:, :k])
    with pytest.raises(AssertionError, match="no so many values"):
        sampler.largest(values, 4098)


def test_the_largest_beside_values_that_are_not_numbers(library: Library) -> None:
    """The others are named; where they do not suffice, NaNs stand behind them."""
    values = torch.full((3, 600), float("nan"))
    values[0, 5::9] = torch.arange(67.0)
    values[1, 7] = 2.0
    found, ids = NativeSampler(library, num_threads=2).largest(values, 20)
    assert ids[0].tolist() == [5 + 9 * place for place in range(66, 46, -1)]
    assert (found[1, 0], ids[1, 0]) == (2.0, 7)
    assert found[1, 1:].isnan().all()
    assert found[2].isnan().all()
    assert set(ids[2].tolist()) == {0}
