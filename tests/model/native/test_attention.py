"""Attention against a float64 reference: random tables, lengths, chunks, windows and heads; what was never written is
poison, and so are blocks of nobody."""

import ctypes
import math
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.native.kv import NativeKV
from triolet.model.native.library import Format, Library, check
from triolet.model.spec import ModelSpec

NUM_BLOCKS = 96
TOLERANCE = {Format.FLOAT32: 2e-5, Format.BFLOAT16: 0.02, Format.INT8: 0.04}
"""Of outputs that are means of values of about 1."""

Floats = npt.NDArray[np.float64]


@attrs.frozen(kw_only=True)
class Case:
    """A step of several sequences."""

    format: Format
    block_size: int
    num_kv_heads: int
    sharing: int
    head_dim: int
    window: int
    soft_cap: float
    lengths: tuple[tuple[int, int], ...]
    """For each sequence: tokens in the cache before the step, tokens computed in it."""
    threads: int
    seed: int


cases = st.builds(
    Case,
    format=st.sampled_from(list(TOLERANCE)),
    block_size=st.sampled_from([16, 32, 48]),
    num_kv_heads=st.integers(1, 3),
    sharing=st.sampled_from([1, 2, 3, 5, 8, 50]),
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 128]),
    window=st.one_of(st.just(0), st.integers(1, 40), st.integers(200, 300)),
    soft_cap=st.sampled_from([0.0, 0.0, 3.0]),
    lengths=st.lists(
        st.tuples(st.one_of(st.just(0), st.integers(0, 70), st.integers(250, 600)), st.integers(1, 40)),
        min_size=1,
        max_size=3,
    ).map(tuple),
    threads=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)


def reference(case: Case, queries: Floats, keys: Floats, values: Floats, computed: int) -> Floats:
    """Outputs of one sequence: queries `[n, heads, dim]` against all its keys `[computed + n, kv_heads, dim]`."""
    n, context = len(queries), len(keys)
    scores = np.einsum("qhd,khd->hqk", queries, keys.repeat(case.sharing, 1)) / math.sqrt(case.head_dim)
    if case.soft_cap:
        scores = case.soft_cap * np.tanh(scores / case.soft_cap)
    at, key = np.arange(computed, computed + n)[:, None], np.arange(context)[None]
    seen = (key <= at) & ((key > at - case.window) if case.window else True)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    result: Floats = np.einsum("hqk,khd->qhd", weights, values.repeat(case.sharing, 1))
    return result


class Attention:
    """The kernel over a poisoned cache, one layer."""

    def __init__(self, library: Library, case: Case) -> None:
        self.library, self.case = library, case
        spec: Any = attrs.make_class("Spec", ["num_layers", "num_kv_heads", "head_dim"])(
            1, case.num_kv_heads, case.head_dim
        )
        sized: ModelSpec = spec
        self.kv = NativeKV(library, sized, num_blocks=NUM_BLOCKS, block_size=case.block_size, format=case.format)
        self.kv.memory[:] = 0xFF
        shuffled = np.random.default_rng(case.seed).permutation(NUM_BLOCKS).tolist()
        width = max(-(-sum(lengths) // case.block_size) for lengths in case.lengths)
        self.tables = np.full((len(case.lengths), width), -1, np.int32)
        for row, lengths in enumerate(case.lengths):
            for index in range(-(-sum(lengths) // case.block_size)):
                self.tables[row, index] = shuffled.pop()

    def forget_left_blocks(self) -> None:
        """Blocks that every query's window has left are in no table any more, and may hold anything."""
        for row, (computed, _) in enumerate(self.case.lengths):
            for index in range(max(0, computed + 1 - self.case.window) // self.case.block_size):
                self.kv.memory[:, self.tables[row, index]] = 0xFF
                self.tables[row, index] = -1

    def step(self, starts: list[int], queries: list[Floats], keys: list[Floats], values: list[Floats]) -> list[Floats]:
        """Outputs by sequence, of tokens `[start, start + len(queries))`."""
        case, lengths = self.case, [len(one) for one in queries]
        positions = [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
        slots = np.concatenate(
            [
                self.tables[row][p // case.block_size].astype(np.int64) * case.block_size + p % case.block_size
                for row, p in enumerate(positions)
            ]
        )
        contexts = np.array(starts, np.int64) + lengths
        given = [np.ascontiguousarray(np.concatenate(part), np.float32) for part in (keys, values, queries)]
        outputs = np.full_like(given[2], np.nan)
        counts = np.array(lengths, np.int64)
        check(
            self.library.attend(
                *(
                    self.kv.handle,
                    case.num_kv_heads * case.sharing,
                    case.window,
                    case.soft_cap,
                    len(slots),
                    len(lengths),
                ),
                *(counts.ctypes.data, contexts.ctypes.data, self.tables.ctypes.data, self.tables.shape[1]),
                slots.ctypes.data,
                *(array.ctypes.data for array in given),
                outputs.ctypes.data,
                case.threads,
            )
        )
        return [part.astype(np.float64) for part in np.split(outputs, np.cumsum(lengths)[:-1])]


@settings(deadline=None, max_examples=60)
@given(case=cases)
def test_attention_is_the_references(library: Library, case: Case) -> None:
    """Whatever is in the cache before the step, and however long the step's chunks are."""
    random = np.random.default_rng(case.seed)
    attention = Attention(library, case)
    heads = case.num_kv_heads * case.sharing

    def rows(count: int, num_heads: int) -> Floats:
        return random.standard_normal((count, num_heads, case.head_dim))

    totals = [sum(lengths) for lengths in case.lengths]
    keys, values = ([rows(total, case.num_kv_heads) for total in totals] for _ in range(2))
    before, counts = zip(*case.lengths, strict=True)
    if any(before):
        attention.step(
            [0] * len(before),
            [rows(n, heads) for n in before],
            [k[:n] for k, n in zip(keys, before, strict=True)],
            [v[:n] for v, n in zip(values, before, strict=True)],
        )
    if case.window:
        attention.forget_left_blocks()
    queries = [rows(n, heads) for n in counts]
    outputs = attention.step(
        list(before),
        queries,
        [k[n:] for k, n in zip(keys, before, strict=True)],
        [v[n:] for v, n in zip(values, before, strict=True)],
    )
    for row, output in enumerate(outputs):
        expected = reference(case, queries[row], keys[row], values[row], before[row])
        np.testing.assert_allclose(output, expected, atol=TOLERANCE[case.format], rtol=TOLERANCE[case.format])


@pytest.mark.parametrize("format", list(TOLERANCE))
def test_large_scores_do_not_overflow(library: Library, format: Format) -> None:
    """Scores of some hundreds: the softmax is relative to the largest, chunk after chunk."""
    case = Case(
        format=format,
        block_size=16,
        num_kv_heads=1,
        sharing=2,
        head_dim=64,
        window=0,
        soft_cap=0.0,
        lengths=((0, 700),),
        threads=1,
        seed=1,
    )
    random = np.random.default_rng(0)
    keys, values = random.standard_normal((700, 1, 64)) * 8, random.standard_normal((700, 1, 64))
    queries = random.standard_normal((700, 2, 64)) * 8
    (output,) = Attention(library, case).step([0], [queries], [keys], [values])
    assert np.isfinite(output).all()
    if format is Format.FLOAT32:
        np.testing.assert_allclose(output, reference(case, queries, keys, values, 0), atol=1e-3)


def test_the_library_keeps_no_pointer(library: Library) -> None:
    """A cache may be freed and another made in its place."""
    for _ in range(3):
        handle = ctypes.c_void_p()
        check(library.new_cache(ctypes.byref(handle), Format.BFLOAT16, 2, 40, 16, 3, 64))
        library.free_cache(handle)
