"""Sampling against a plain reference: what stays, in which order the filters act, and what the draw depends on.

Everything here holds for torch and for the native kernels.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model import sampling
from triolet.model.sampling import SamplingRows, sample, uniforms

pytestmark = pytest.mark.usefixtures("row_kernels_or_none")


def rows_of(*rows: dict[str, Any], masked: tuple[tuple[int, tuple[int, ...]], ...] = ()) -> SamplingRows:
    """Columns from one dict a row; what a dict leaves out filters nothing."""

    def column(name: str, default: float, dtype: Any) -> Any:
        return np.array([row.get(name, default) for row in rows], dtype)

    return SamplingRows(
        temperature=column("temperature", 1.0, np.float64),
        top_k=column("top_k", 0, np.int64),
        top_p=column("top_p", 1.0, np.float64),
        min_p=column("min_p", 0.0, np.float64),
        seeds=np.array([row.get("seed", 0) % 2**64 for row in rows], np.uint64),
        positions=column("position", 0, np.int64),
        masked=masked,
    )


def reference_weights(logits: Sequence[float], row: dict[str, Any]) -> list[float]:
    """The weight of every token after all filters, in float64, one token at a time."""
    largest = max(logits)
    scaled = [(value - largest) / row.get("temperature", 1.0) for value in logits]
    weights = [math.exp(value) for value in scaled]
    kept = [weight >= row.get("min_p", 0.0) for weight in weights]
    top_k = row.get("top_k", 0)
    if 0 < top_k < len(logits):
        kth = sorted(scaled, reverse=True)[top_k - 1]
        kept = [keep and value >= kth for keep, value in zip(kept, scaled, strict=True)]
    weights = [weight if keep else 0.0 for weight, keep in zip(weights, kept, strict=True)]
    top_p = row.get("top_p", 1.0)
    if top_p < 1:
        total, mass, last = sum(weights), 0.0, 0.0
        for value, weight in sorted(zip(scaled, weights, strict=True), reverse=True):
            if weight == 0 or mass >= top_p * total:
                break
            mass, last = mass + weight, value
        weights = [weight if value >= last else 0.0 for weight, value in zip(weights, scaled, strict=True)]
    return weights


def reference_token(weights: Sequence[float], uniform: float) -> int:
    """Inverse of the cumulated distribution, in order of token ids."""
    target, mass = uniform * sum(weights), 0.0
    for token, weight in enumerate(weights):
        mass += weight
        if mass > target:
            return token
    raise AssertionError("the target is below the total")


def random_logits(rows: int, vocab: int, seed: int = 0, *, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


requests = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.7]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 7, 50, 64, 100, 300, 10**9]),
        "top_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.2, 1.0]),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "position": st.integers(0, 2**20),
    },
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(requests, min_size=1, max_size=6),
    st.sampled_from([1, 5, 65, 256, 300, 700, 9000]),
    st.sampled_from([0.3, 3.0, 3.0]),
    st.sampled_from([0.0, 0.0, 0.9, 0.999]),
    st.integers(0, 2**32),
)
def test_every_token_is_the_one_of_the_plain_reference(
    rows: list[dict[str, Any]], vocab: int, scale: float, masked: float, seed: int
) -> None:
    """All filters, alone and together, in one batch of unlike requests, on steep and flat logits, most of them masked
    at times, in vocabularies below and above the numbers of candidates that are looked at first."""
    logits = random_logits(len(rows), vocab, seed, scale=scale)
    gone = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < masked
    gone[:, 0] = False
    logits.masked_fill_(gone, float("-inf"))
    columns = rows_of(*rows)
    tokens, usable = sample(logits.clone(), columns)
    assert usable.all()
    draws = uniforms(columns.seeds, columns.positions)
    for i, row in enumerate(rows):
        weights = reference_weights(logits[i].tolist(), row)
        assert weights[tokens[i]] > 0
        expected = reference_token(weights, draws[i])
        if tokens[i] != expected:  # float32 weights: the draw may fall on the other side of a border it nearly touches
            mass, total = sum(weights[: max(tokens[i], expected)]), sum(weights)
            assert abs(mass / total - draws[i]) < 1e-5


@settings(deadline=None, max_examples=60)
@given(requests, st.lists(requests, max_size=5), st.integers(0, 2**32))
def test_a_row_does_not_depend_on_its_neighbours(row: dict[str, Any], others: list[dict[str, Any]], seed: int) -> None:
    """The same request alone and at any place among others gets the same token."""
    logits = random_logits(len(others) + 1, 400, seed)
    alone, _ = sample(logits[:1].clone(), rows_of(row))
    among, _ = sample(logits.clone(), rows_of(row, *others))
    last, _ = sample(logits.roll(-1, 0), rows_of(*others, row))
    assert alone[0] == among[0] == last[-1]


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    """Temperature 0 bypasses the other fields."""
    logits = torch.zeros(3, 50)
    logits[1, [7, 3, 40]] = 5.0
    logits[2, 49] = 1.0
    tokens, usable = sample(logits, rows_of(*[{"temperature": 0, "top_k": 2, "top_p": 0.1, "min_p": 0.5}] * 3))
    assert tokens.tolist() == [0, 3, 49]
    assert usable.all()


def test_equal_logits_stay_together() -> None:
    """A filter whose border falls among equal tokens keeps them all: no order among them is chosen."""
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0]])
    for row in ({"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.9}):
        seen = {int(sample(logits.clone(), rows_of({**row, "seed": seed}))[0][0]) for seed in range(200)}
        assert seen == {1, 2, 3}


def test_top_p_acts_on_what_top_k_has_left() -> None:
    """Of weights 4, 2, 1, 1 top_k 2 leaves 4 and 2; top_p 0.66 of those is the first alone, of all it would be both."""
    logits = torch.tensor([[4.0, 2.0, 1.0, 1.0]]).log()
    both = {int(sample(logits.clone(), rows_of({"top_p": 0.66, "seed": s}))[0][0]) for s in range(100)}
    first = {int(sample(logits.clone(), rows_of({"top_p": 0.66, "top_k": 2, "seed": s}))[0][0]) for s in range(100)}
    assert both == {0, 1}
    assert first == {0}


def test_temperature_acts_before_min_p() -> None:
    """Half of the weight of the best token is enough at temperature 1, not at temperature 0.5."""
    logits = torch.tensor([[1.0, 0.5]]).log()
    warm = {int(sample(logits.clone(), rows_of({"min_p": 0.4, "seed": s}))[0][0]) for s in range(100)}
    cold = {
        int(sample(logits.clone(), rows_of({"min_p": 0.4, "temperature": 0.5, "seed": s}))[0][0]) for s in range(100)
    }
    assert warm == {0, 1}
    assert cold == {0}


@pytest.mark.parametrize("spread", [0.0, 0.01, 4.0])
def test_top_p_looks_past_its_first_candidates(spread: float) -> None:
    """A flat distribution needs more tokens than are sorted at first; the threshold is exact all the same."""
    logits = random_logits(2, 5000, scale=spread)
    rows = rows_of({"top_p": 0.9, "seed": 1}, {"top_p": 0.999, "seed": 2, "temperature": 1.5})
    tokens, _ = sample(logits.clone(), rows)
    assert max(sampling.FEW) < sampling.TOP_P_CANDIDATES < logits.shape[1]
    for i, row in enumerate(({"top_p": 0.9}, {"top_p": 0.999, "temperature": 1.5})):
        weights = reference_weights(logits[i].tolist(), row)
        draw = uniforms(rows.seeds, rows.positions)[i]
        assert abs(tokens[i] - reference_token(weights, draw)) <= (2 if spread == 0.0 else 0)


@pytest.mark.parametrize("temperature", [1e-30, 1e-5])
def test_a_tiny_temperature_is_almost_greedy(temperature: float) -> None:
    """Nothing overflows: the largest logit wins."""
    logits = random_logits(4, 300)
    tokens, usable = sample(logits.clone(), rows_of(*[{"temperature": temperature, "seed": s} for s in range(4)]))
    assert usable.all()
    assert tokens.tolist() == logits.argmax(-1).tolist()


def test_masked_tokens_are_never_chosen() -> None:
    """Neither greedily nor by a draw; other rows may choose them."""
    logits = torch.zeros(3, 10)
    logits[:, [2, 5]] = 9.0
    rows = rows_of({"temperature": 0}, {"temperature": 1}, {"temperature": 0}, masked=((0, (2,)), (1, (2, 5))))
    tokens, _ = sample(logits, rows)
    assert tokens[0] == 5
    assert tokens[1] not in (2, 5)
    assert tokens[2] == 2


@pytest.mark.parametrize("vocab", [1, 15, 300, 5003])
@pytest.mark.parametrize("allowed", [0, 0.3, 0.999])
def test_the_only_token_left_is_chosen(vocab: int, allowed: float) -> None:
    """Whatever the filters: by a mask, by top_k 1 or by a min_p of 1."""
    only = int(allowed * vocab)
    masked = torch.full((1, vocab), float("-inf"))
    masked[0, only] = -7.5
    best = random_logits(1, vocab, scale=0.2)
    best[0, only] = 1.0
    filters = ({}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"top_k": 9999, "top_p": 0.9, "min_p": 0.2})
    for row in ({"temperature": 0}, *filters):
        assert sample(masked.clone(), rows_of(row))[0].tolist() == [only]
    for row in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}, {"top_k": 1, "top_p": 0.3, "min_p": 1e-4}):
        assert sample(best.clone(), rows_of({**row, "seed": only}))[0].tolist() == [only]


@pytest.mark.parametrize("k", [2, 70, 700, 3000])
def test_the_border_of_top_k_may_fall_among_equals(k: int) -> None:
    """They all stay; one logit below them nothing does. For small and large k."""
    logits = torch.full((200, 9001), -1.0)
    logits[:, 17 : 17 + k + 5] = 1.0
    logits[:, 8999] = 1.0
    tokens, _ = sample(logits, rows_of(*[{"top_k": k, "seed": seed} for seed in range(200)]))
    allowed = {*range(17, 17 + k + 5), 8999}
    assert set(tokens.tolist()) <= allowed
    assert max(tokens) - 17 > k * 0.8


@pytest.mark.parametrize("masked", [-1e4, -1e30, float(torch.finfo(torch.float32).min), float("-inf")])
@pytest.mark.parametrize(
    "row", [{"top_p": 0.9}, {"top_k": 500}, {"top_k": 500, "top_p": 0.9}, {"min_p": 1e-7, "top_p": 0.99}]
)
def test_logits_that_others_have_masked_weigh_nothing(masked: float, row: dict[str, Any]) -> None:
    """By any very low value: the filters act on the others as if these were not there."""
    logits = random_logits(3, 2000, scale=0.5)
    wide = torch.full((3, 4000), masked)
    wide[:, ::2] = logits
    rows = rows_of(*[{**row, "seed": seed} for seed in range(3)])
    tokens, usable = sample(wide, rows)
    expected, _ = sample(logits, rows)
    assert usable.all()
    assert tokens.tolist() == (2 * expected).tolist()


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", ["nan", "inf", "nothing"])
def test_unusable_logits_are_reported_and_spoil_no_other_row(bad: str, temperature: float) -> None:
    """A NaN, an infinity, or no token at all: that row is not usable, its neighbours get their tokens."""
    logits = random_logits(3, 300)
    expected, _ = sample(logits.clone(), rows_of(*[{"temperature": temperature, "seed": s} for s in range(3)]))
    if bad == "nothing":
        logits[1] = float("-inf")
    else:
        logits[1, 17] = float(bad)
    tokens, usable = sample(logits, rows_of(*[{"temperature": temperature, "seed": s} for s in range(3)]))
    assert usable.tolist() == [True, False, True]
    assert tokens[[0, 2]].tolist() == expected[[0, 2]].tolist()


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 draws with seeds 0, 1, 2, …: below the 0.1 % point of 9 degrees of freedom."""
    weights = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 55])
    count = 20_000
    logits = torch.from_numpy(weights).float().log().expand(count, -1).clone()
    for rows in (
        rows_of(*[{"seed": seed, "position": 5} for seed in range(count)]),
        rows_of(*[{"seed": 5, "position": position} for position in range(count)]),
    ):
        tokens, _ = sample(logits.clone(), rows)
        expected = weights / weights.sum() * count
        chi_square = ((np.bincount(tokens, minlength=10) - expected) ** 2 / expected).sum()
        assert chi_square < 27.9


def test_uniforms_are_even_and_unrelated() -> None:
    """Neighbouring seeds and positions share nothing: means, spread and correlations are those of chance."""
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    draws = uniforms(seeds.reshape(-1), positions.reshape(-1)).reshape(200, 200)
    assert ((draws >= 0) & (draws < 1)).all()
    assert abs(draws.mean() - 0.5) < 0.006
    assert abs(draws.var() - 1 / 12) < 0.002
    for axis in (0, 1):
        ahead = np.roll(draws, 1, axis)
        assert abs(np.corrcoef(draws.reshape(-1), ahead.reshape(-1))[0, 1]) < 0.02
    assert len(np.unique(draws)) == draws.size


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    """Known values: a change of the hash would change every seeded answer that users have kept."""
    seeds = np.array([0, 1, 2**64 - 1, 1], np.uint64)
    draws = uniforms(seeds, np.array([0, 0, 7, 1]))
    assert draws.tolist() == uniforms(seeds, np.array([0, 0, 7, 1])).tolist()
    assert draws.tolist() == [
        pytest.approx(plain_uniform(int(seed), position), abs=0)
        for seed, position in zip(seeds, (0, 0, 7, 1), strict=True)
    ]


def plain_uniform(seed: int, position: int) -> float:
    """splitmix64 with Python's integers."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    key = mix((seed + golden) % 2**64)
    return (mix((key + (position + 1) * golden) % 2**64) >> 11) / 2**53


def test_the_last_possible_draw_stays_within_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uniform just below 1 and one of 0 pick tokens that have a weight, at the ends of what is left."""
    logits = torch.full((2, 1000), -200.0)
    logits[:, [3, 400, 999 - 300]] = torch.tensor([1.0, 2.0, 1.5])
    monkeypatch.setattr(sampling, "uniforms", lambda *_: np.array([0.0, 1 - 2.0**-53]))
    tokens, _ = sample(logits, rows_of({}, {}))
    assert tokens.tolist() == [3, 699]
