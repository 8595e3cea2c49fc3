"""The sampling kernel in the interpreter, against the sampler of the CPU: the same tokens, counts and verdicts."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.layers.triton.sample import (
    BROKEN,
    IN_PROMPT,
    RULED_OUT,
    USABLE,
    AllowedTokens,
    SamplingColumns,
    SparseBias,
    sample_tokens,
    sample_tokens_launch,
    sample_tokens_reference,
)
from triolet.model.sampling import SamplingRows, sample

from ..interpreter import fresh_seed, poison, run_in_both_orders

# Hashes are computed modulo 2**64, and -inf is far below any logit: numpy mentions both.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


class Draw:
    """Random rows with random wishes. Some logits are equal, so that thresholds cut through ties."""

    def __init__(self, seed: int, num_rows: int, vocab_size: int) -> None:
        self.rng = np.random.default_rng(seed)
        rng, n = self.rng, num_rows
        logits = rng.normal(scale=rng.choice([0.3, 3.0]), size=(n, vocab_size))
        logits[rng.random(logits.shape) < 0.3] = logits.flat[0]
        # Rows stand apart, with numbers between them that belong to no one.
        self.logits = poison(torch.empty(n, vocab_size + 3))[:, :vocab_size]
        self.logits.copy_(torch.from_numpy(logits))
        self.slots = torch.from_numpy(rng.permutation(n + 1)[:n])
        rows = SamplingRows(
            temperature=rng.choice([0.0, 0.4, 1.0, 1.7, 1e-40], n + 1),
            top_k=rng.choice([0, 1, 3, 20, vocab_size, 10**9], n + 1),
            top_p=rng.choice([1.0, 0.9, 0.4, 1e-4], n + 1),
            min_p=rng.choice([0.0, 0.0, 0.05, 1.0], n + 1),
            seeds=rng.integers(0, 2**64, n + 1, dtype=np.uint64),
            positions=rng.integers(0, 2**31, n + 1),
        )
        self.columns = SamplingColumns.of(rows, "cpu")

    def penalise(self) -> None:
        rng, shape = self.rng, (len(self.columns.seeds), self.logits.shape[1])
        counts = rng.choice([0, 0, 0, 1, 2, IN_PROMPT, IN_PROMPT + 1], shape).astype(np.int32)
        some = [rng.choice(of, shape[0]).astype(np.float32) for of in ([1, 1, 1.3, 0.8], [0, 0, 0.4], [0, 0, -0.7])]
        self.columns = attrs.evolve(
            self.columns,
            counts=torch.from_numpy(counts),
            repetition=torch.from_numpy(some[0]),
            frequency=torch.from_numpy(some[1]),
            presence=torch.from_numpy(some[2]),
        )

    def bias(self) -> SparseBias:
        rng, (n, vocab_size) = self.rng, self.logits.shape
        lengths = rng.integers(0, min(vocab_size, 5), n)
        ids = [rng.permutation(vocab_size)[:length] for length in lengths]
        values = rng.choice([-np.inf, -2.0, 3.0], lengths.sum()).astype(np.float32)
        return SparseBias(
            starts=torch.from_numpy(np.concatenate(([0], lengths.cumsum())).astype(np.int32)),
            token_ids=torch.from_numpy(np.concatenate((*ids, [0])).astype(np.int32)),
            values=torch.from_numpy(np.concatenate((values, [0])).astype(np.float32)),
        )

    def allowed(self) -> AllowedTokens:
        rng, (n, vocab_size) = self.rng, self.logits.shape
        words = rng.integers(-(2**31), 2**31, (2, -(-vocab_size // 32)))
        rows = rng.choice([-1, 0, 1], n).astype(np.int32)
        return AllowedTokens(rows=torch.from_numpy(rows), words=torch.from_numpy(words.astype(np.int32)))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(1, 3),
    vocab_size=st.integers(2, 600),
    shaped=st.booleans(),
    candidates=st.sampled_from([16, 1024]),
)
def test_each_row_draws_what_the_cpu_draws(
    seed: int, num_rows: int, vocab_size: int, shaped: bool, candidates: int
) -> None:
    """Any wishes beside one another, whether what the filters leave is put aside or is too much for it."""
    case = Draw(seed, num_rows, vocab_size)
    bias = allowed = None
    if shaped:
        case.penalise()
        bias, allowed = case.bias(), case.allowed()
    logits, columns = case.logits.clone(), case.columns
    counts = None if columns.counts is None else columns.counts.clone()
    wanted, verdicts = torch.zeros(num_rows, dtype=torch.int64), torch.zeros(num_rows, dtype=torch.int32)
    options = {"bias": bias, "allowed": allowed, "take": True}
    sample_tokens_reference(logits, case.slots, attrs.evolve(columns, counts=counts), wanted, verdicts, **options)
    tokens, status = poison(torch.empty_like(wanted)), poison(torch.empty_like(verdicts))
    outputs = [case.logits, tokens, status] + ([] if columns.counts is None else [columns.counts])

    def launches():  # type: ignore[no-untyped-def]
        launch = sample_tokens_launch(
            case.logits, case.slots, columns, tokens, status, **options, candidates=candidates, block=128
        )
        poison(launch.arguments["scratch"])
        return [launch]

    run_in_both_orders(launches, outputs)
    assert status.tolist() == verdicts.tolist()
    assert tokens.tolist() == wanted.tolist()
    if counts is not None and columns.counts is not None:
        assert torch.equal(columns.counts, counts)


@pytest.mark.parametrize("case", ["nan", "inf", "none", "one"])
def test_rows_that_cannot_be_drawn_say_why(case: str) -> None:
    """A NaN or +inf is the model's fault, a row without a token the request's; their neighbours draw as ever."""
    draw = Draw(fresh_seed(), 3, 200)
    if case == "none":
        draw.logits[1] = float("-inf")
    elif case == "one":
        draw.logits[1] = float("-inf")
        draw.logits[1, 77] = -1e30
    else:
        draw.logits[1, 150] = float(case)
    alone, _ = sample_tokens(draw.logits[::2].clone(), draw.slots[::2].clone(), draw.columns)
    tokens, status = sample_tokens(draw.logits, draw.slots, draw.columns)
    wanted = {"nan": BROKEN, "inf": BROKEN, "none": RULED_OUT, "one": USABLE}[case]
    assert status.tolist() == [USABLE, wanted, USABLE]
    assert tokens[1] == (77 if case == "one" else 0)
    assert tokens[::2].tolist() == alone.tolist()


def test_one_seed_gives_each_position_a_draw_of_its_own() -> None:
    """Many positions of a seed, drawn as the CPU draws them, and not one and the same token."""
    n, seed = 24, fresh_seed()
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=60).astype(np.float32)).expand(n, 60).clone()
    rows = SamplingRows(
        temperature=np.ones(n),
        top_k=np.zeros(n, np.int64),
        top_p=np.ones(n),
        min_p=np.zeros(n),
        seeds=np.full(n, seed, np.uint64),
        positions=np.arange(n),
    )
    cpu, _ = sample(logits.clone(), rows)
    tokens, _ = sample_tokens(logits, torch.arange(n), SamplingColumns.of(rows, "cpu"))
    assert tokens.tolist() == cpu.tolist(), seed
    assert len(set(tokens.tolist())) > 3


def test_a_large_vocabulary_and_an_empty_step() -> None:
    """The block and the scratch of real launches, with what is left on both sides of the scratch's size; no rows."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    rows = SamplingRows(
        temperature=np.array([1.0, 1.0, 0.7, 1.0]),
        top_k=np.array([0, 40, 9000, 0]),
        top_p=np.array([0.9, 0.95, 1.0, 1.0]),
        min_p=np.array([0.0, 0.0, 0.0, 0.1]),
        seeds=rng.integers(0, 2**64, 4, dtype=np.uint64),
        positions=np.arange(4),
    )
    logits = torch.from_numpy(rng.normal(scale=0.5, size=(4, 20000)).astype(np.float32))
    cpu, _ = sample(logits.clone(), rows)
    tokens, status = sample_tokens(logits, torch.arange(4), SamplingColumns.of(rows, "cpu"))
    assert tokens.tolist() == cpu.tolist(), seed
    assert not status.any()
    none, _ = sample_tokens(logits[:0], torch.arange(0), SamplingColumns.of(rows, "cpu"))
    assert none.tolist() == []
