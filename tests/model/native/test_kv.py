"""The native KV cache: sizes, copies of blocks, groups that share memory."""

from typing import Any

import numpy as np
import pytest

from tests.model.native.steps import POISON, Sequences, native_forward
from tests.model.running import reference_model, spec_of
from triolet.model.kv import bytes_per_block
from triolet.model.native.kv import NativeKV, element_width, why_unfit_block
from triolet.model.native.library import Format, Library
from triolet.model.spec import ModelSpec

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=131,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
    tied_embeddings=True,
)


def cache(library: Library, **fields: Any) -> NativeKV:
    return NativeKV(library, SPEC, **{"num_blocks": 6, "block_size": 32, "format": Format.BFLOAT16, **fields})


@pytest.mark.parametrize("format", [Format.FLOAT32, Format.BFLOAT16, Format.INT8])
def test_a_block_takes_what_the_sizing_counts(library: Library, format: Format) -> None:
    """Bytes of a block over all layers; int8 has four bytes of scale with each K and each V of a head."""
    width, element_bytes = element_width(format, SPEC.head_dim)
    expected = 4 * 32 * 2 * 2 * width * element_bytes
    kv = cache(library, format=format)
    assert kv.num_bytes == 6 * expected
    if format is Format.BFLOAT16:
        import torch

        assert expected == bytes_per_block(SPEC, block_size=32, dtype=torch.bfloat16)


def test_blocks_are_copied_in_all_layers_all_read_before_any_is_written(library: Library) -> None:
    """A chain of copies takes what was there before."""
    kv = cache(library)
    kv.memory[:] = np.arange(6, dtype=np.uint8)[None, :, None]
    kv.copy_blocks([0, 1, 4], [1, 2, 3])
    assert (kv.memory == np.array([0, 0, 1, 4, 4, 5], np.uint8)[None, :, None]).all()
    kv.copy_blocks([], [])


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [([0, 1], [2], "2 blocks to copy, but 1 targets"), ([0], [6], "block 6 is to be copied"), ([-1], [0], "block -1")],
)
def test_copies_that_do_not_fit_are_refused(
    library: Library, sources: list[int], targets: list[int], message: str
) -> None:
    """Nothing is copied."""
    kv = cache(library)
    with pytest.raises(AssertionError, match=message):
        kv.copy_blocks(sources, targets)
    assert not kv.memory.any()


def test_layers_of_other_groups_share_memory(library: Library) -> None:
    """The i-th layers of all groups use the i-th part."""
    kv = cache(library, layer_groups=(0, 1, 0, 1))
    assert (kv.num_groups, kv.layer_tensors, len(kv.memory)) == (2, (0, 0, 1, 1), 2)


def test_groups_that_number_nothing_are_refused(library: Library) -> None:
    """Every layer has a group, and the groups are numbered from 0."""
    for groups in ((0, 0), (0, 2, 0, 2)):
        with pytest.raises(ValueError, match="do not number the groups of 4 layers"):
            cache(library, layer_groups=groups)


def test_blocks_hold_whole_tiles() -> None:
    """Multiples of 16 tokens; the reason names the flag."""
    assert why_unfit_block(32) is None
    assert why_unfit_block(24) == "--block-size 24 is not a multiple of 16"


def test_a_library_that_is_asked_for_nonsense_says_so(library: Library) -> None:
    """Sizes that no cache has."""
    with pytest.raises(ValueError, match="a block holds a multiple of 16 tokens"):
        cache(library, block_size=8)
    with pytest.raises(ValueError, match="no cache has such a shape"):
        cache(library, num_blocks=0)


def test_a_forked_sequence_goes_on_over_a_copied_block(library: Library) -> None:
    """Copy-on-write: two answers write on from the same partial block, each into its own."""
    reference = reference_model()
    spec, weights = spec_of(reference.config), reference.state_dict()
    forward = native_forward(library, spec, weights.items(), Format.FLOAT32)
    both = Sequences(forward, [[3, 4, 5, 6], [3, 4, 5, 7]])
    first = both.step([3, 0])
    forward.kv.copy_blocks([int(both.tables[0, 0])], [int(both.tables[1, 0])])
    both.computed = [3, 3]
    logits = both.step([1, 1])
    for row, last in enumerate((6, 7)):
        alone = Sequences(native_forward(library, spec, weights.items(), Format.FLOAT32), [[3, 4, 5, last]])
        assert np.array_equal(alone.step([4])[3], logits[row])
    assert len(first) == 3
    untouched = np.setdiff1d(np.arange(64), both.tables)
    assert (forward.kv.memory[:, untouched] == POISON).all()


def test_pages_are_taken_in_advance_and_hold_what_they_held(library: Library) -> None:
    """So many bytes over all layers, in whole pieces, and the whole cache at most; where the kernel cannot: none."""
    for num_bytes, expected in ((4 * 4096, 4 * 4096), (1 << 40, None)):
        kv = cache(library, num_blocks=600)
        kv.memory[:] = np.arange(600, dtype=np.uint16)[None, :, None] % 251
        kv.prefault(num_bytes)
        assert kv.wait_prefault() in (0, expected if expected is not None else kv.num_bytes)
        assert (kv.memory == (np.arange(600, dtype=np.uint16) % 251).astype(np.uint8)[None, :, None]).all()


def test_a_cache_may_go_while_its_pages_are_taken(library: Library) -> None:
    """The thread is ended first."""
    for _ in range(20):
        kv = cache(library, num_blocks=20_000)
        kv.prefault(kv.num_bytes)
        del kv


def test_pages_are_taken_once_and_not_none_of_them(library: Library) -> None:
    """What asks for more is our own mistake."""
    kv = cache(library)
    with pytest.raises(ValueError, match="nothing is to be taken"):
        kv.prefault(0)
    kv.prefault(1)
    with pytest.raises(ValueError, match="being taken already"):
        kv.prefault(1)
