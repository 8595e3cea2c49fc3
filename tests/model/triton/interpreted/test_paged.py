"""The attention kernels in the interpreter, against float64: shapes, tables, windows, caps, sinks, fp8, splits."""

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.attention.triton.paged import paged_attention
from triolet.model.attention.triton.tiles import Tiles, choose_tiles

from ..interpreter import bits, fresh_seed, poison
from .scenes import Scene, Step

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Small tiles, so that little work meets many edges."""
    length = st.one_of(st.just(1), st.integers(0, 20))
    pairs = draw(st.lists(st.tuples(length, st.integers(0, 70)), min_size=1, max_size=4))
    group = draw(st.sampled_from([1, 2, 3, 4, 8]))
    return Step(
        # No more queries than context, but padding: queries without one.
        sequences=tuple(
            (min(1, queries), 0) if not before else (queries, before + queries) for queries, before in pairs
        ),
        group=group,
        num_kv_heads=draw(st.integers(1, 2)),
        head_dim=draw(st.sampled_from([16, 24, 64])),
        block_size=draw(st.sampled_from([16, 32, 128])),
        dtype=draw(st.sampled_from(DTYPES)),
        chip=draw(st.sampled_from([None, 80, 90])),
        window=draw(st.sampled_from([None, None, 1, 7, 33])),
        soft_cap=draw(st.sampled_from([None, 0.5, 30.0])),
        has_sinks=draw(st.booleans()),
        tiles=Tiles(draw(st.sampled_from([16, 32])), draw(st.sampled_from([16, 32, 64])), 4, 1),
        splits=draw(st.sampled_from([1, 1, 2, 4])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@settings(deadline=None, max_examples=25)
@given(steps())
def test_any_step_equals_float64_and_reads_no_other_slot(step: Step) -> None:
    """Chunks, decodes, padding and idle sequences in one batch; a NaN in every slot that is nobody's reaches no sum."""
    Scene(step).check()


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("max_query_length", [1, 9])
def test_the_tables_own_tiles(head_dim: int, max_query_length: int) -> None:
    """Each head size with the tiles that the table gives for it, for decodes and for a mix, in bfloat16."""
    seed = fresh_seed()
    sequences = ((1, 40), (max_query_length, 70), (1, 0), (1, 1), (0, 0))
    Scene(Step(sequences=sequences, group=4, head_dim=head_dim, dtype=torch.bfloat16, seed=seed)).check()


@pytest.mark.parametrize("context", [1, 15, 16, 17, 255, 256, 257, 700])
def test_splits_meet_at_every_boundary(context: int) -> None:
    """Long contexts cut into eight, or into fewer where they are too short, beside a short one and padding."""
    seed = fresh_seed()
    step = Step(
        sequences=((1, context), (1, 0), (1, 3)), splits=8, has_sinks=True, seed=seed, tiles=Tiles(16, 64, 4, 1)
    )
    Scene(step).check()


@pytest.mark.parametrize("block_size", [16, 48, 64, 128])
def test_a_chunk_that_ends_with_its_block(block_size: int) -> None:
    """Contexts that fill their last block to the end, and one token more."""
    seed = fresh_seed()
    sequences = ((5, block_size), (1, block_size), (2, block_size + 1), (block_size + 1, block_size + 1))
    Scene(Step(sequences=sequences, block_size=block_size, seed=seed, tiles=Tiles(16, 64, 4, 1))).check()


def test_more_sequences_than_a_program_looks_through_at_once() -> None:
    """A tile finds its sequence beyond the first 256, with chunks between the decodes."""
    sequences = tuple((9, 9) if i > 255 and i % 7 == 0 else (i % 50 == 7, 1 + i % 3) for i in range(270))
    step = Step(sequences=sequences, head_dim=16, tiles=Tiles(16, 16, 4, 1), seed=fresh_seed())
    Scene(step).check()


def test_what_the_model_calls_gives_the_same_bits_alone_and_in_a_batch() -> None:
    """A decode's output does not depend on who else is in the step, as long as the tiles are the same."""
    seed = fresh_seed()
    scene = Scene(Step(sequences=((1, 30), (1, 65), (1, 7)), dtype=torch.float16, seed=seed))
    whole = paged_attention(scene.queries, scene.kv, scene.batch, scene.terms)
    alone = Scene(Step(sequences=((1, 30),), dtype=torch.float16, seed=seed))
    batch = attrs.evolve(alone.batch, tables=scene.batch.tables[:1])
    again = paged_attention(scene.queries[:1], scene.kv, batch, scene.terms)
    assert torch.equal(bits(again), bits(whole[:1]))


def test_no_tokens_are_no_error() -> None:
    """An empty step starts nothing."""
    scene = Scene(Step(sequences=((0, 5),)))
    out = poison(torch.empty(0, 2, 64))
    assert paged_attention(scene.queries[:0], scene.kv, scene.batch, scene.terms, out=out).shape == (0, 2, 64)


def test_wide_groups_get_tiles_that_hold_them() -> None:
    """Multi-query attention with more heads than the table's tile has rows."""
    tiles = choose_tiles(head_dim=64, group=40, max_query_length=1, element_bytes=2)
    assert tiles.block_m == 64
    step = Step(sequences=((1, 20), (1, 33)), group=40, dtype=torch.float16, seed=fresh_seed())
    Scene(step).check()
