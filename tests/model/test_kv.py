"""The KV tensors: one row a token, whole blocks copied in all layers, groups that share memory."""

from typing import Any

import pytest
import torch

from tests.model.running import reference_model, spec_of
from triolet.kvcache.arithmetic import block_bytes
from triolet.model.kv import KVTensors, bytes_per_block
from triolet.model.spec import ModelSpec

SPEC: ModelSpec = spec_of(reference_model("llama").config)


def new_kv(**fields: Any) -> KVTensors:
    kv = KVTensors(SPEC, **{"num_blocks": 6, "block_size": 4, "dtype": torch.float32, **fields})
    for index, tensor in enumerate(kv.tensors):
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) + 1000 * index)
    return kv


def test_a_row_is_a_token_in_a_layer() -> None:
    """Slot `block * block_size + offset` is that token's keys, then its values."""
    kv = new_kv()
    assert kv.tensors[0].shape == (6, 4, 2, 2, 16)
    row = kv.rows(1)[3 * 4 + 2]
    assert torch.equal(row[:32], kv.layers[1][3, 2, 0].reshape(-1))
    assert torch.equal(row[32:], kv.layers[1][3, 2, 1].reshape(-1))


def test_its_size_is_what_the_arithmetic_says() -> None:
    """Bytes of all tensors = blocks × bytes per block."""
    kv = new_kv(dtype=torch.bfloat16)
    per_block = bytes_per_block(SPEC, block_size=4, dtype=torch.bfloat16)
    assert kv.num_bytes == 6 * per_block
    assert per_block == block_bytes(num_layers=3, num_kv_heads=2, head_dim=16, element_bytes=2, block_size=4)


def test_sources_are_read_before_targets_are_written() -> None:
    """A swap, a chain and one source for two targets all see the old content, in every layer."""
    kv = new_kv()
    before = [tensor.clone() for tensor in kv.tensors]
    kv.copy_blocks((0, 1, 1, 2), (1, 0, 2, 5))
    for tensor, old in zip(kv.tensors, before, strict=True):
        assert torch.equal(tensor, old[[1, 0, 1, 3, 4, 2]])


def test_no_copies_touch_nothing() -> None:
    """Empty columns are the usual case."""
    kv = new_kv()
    before = kv.tensors[0].clone()
    kv.copy_blocks((), ())
    assert torch.equal(kv.tensors[0], before)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ((0, 1), (2,), "2 blocks to copy, but 1 targets"),
        ((0,), (6,), "block 6 is to be copied, but there are 6 blocks"),
        ((-1,), (0,), "block -1 is to be copied, but there are 6 blocks"),
    ],
)
def test_a_copy_that_cannot_be_is_a_bug(sources: Any, targets: Any, message: str) -> None:
    """AssertionError, before anything is copied."""
    with pytest.raises(AssertionError, match=message):
        new_kv().copy_blocks(sources, targets)


def test_groups_share_tensors_by_rank() -> None:
    """As many tensors as the largest group has layers; the i-th layers of all groups have the i-th."""
    kv = new_kv(layer_groups=(0, 1, 0))
    assert (kv.num_groups, len(kv.tensors)) == (2, 2)
    assert kv.layers[0] is kv.layers[1] is kv.tensors[0]
    assert kv.layers[2] is kv.tensors[1]


@pytest.mark.parametrize("groups", [(0, 0), (0, 2, 0), (1, 1, 1)])
def test_groups_that_are_not_numbered_are_refused(groups: tuple[int, ...]) -> None:
    """One number a layer, from 0, none left out."""
    with pytest.raises(ValueError, match="do not number the groups of 3 layers"):
        new_kv(layer_groups=groups)


@pytest.mark.parametrize("fields", [{"num_blocks": 0}, {"block_size": 0}])
def test_an_empty_cache_is_refused(fields: dict[str, int]) -> None:
    """The engine refuses before it gets here, naming the flag."""
    with pytest.raises(ValueError, match="a KV cache needs blocks and slots"):
        new_kv(**fields)
