"""Kernels compiled for chips that are not there: some rows of `bench/gpu/kernels.py`, which compiles all of them."""

from collections.abc import Iterator

import attrs
import pytest
import torch

from bench.gpu.ahead import CHIPS, compile_ahead, empty
from bench.gpu.kernels import (
    FP8,
    Make,
    attention,
    copying,
    faults,
    joining,
    norm,
    quantization,
    rotation,
    sampling,
    table,
)
from triolet.model.attention.triton.paged import AttentionTerms, PagedBatch, paged_attention_launches
from triolet.model.attention.triton.tiles import Tiles
from triolet.model.layers.triton.silu_mul import silu_mul_launch

BFLOAT16 = torch.bfloat16
SOME: dict[str, Make] = {
    "attention of decodes": attention(128, 1, BFLOAT16, terms=False),
    "attention of split decodes over fp8": attention(80, 1, FP8, terms=True, splits=8),
    "attention of chunks": attention(128, 16, BFLOAT16, terms=True),
    "attention of prompts over fp8": attention(256, 512, FP8, terms=False),
    "joining": joining(80, 8),
    "rotation over fp8": rotation(80, FP8, has_norm=True),
    "norm": norm(576),
    "silu": lambda chip: silu_mul_launch(empty(64, 3072), empty(64, 1536)),
    "rows to fp8": quantization(4096),
    "copies": copying(),
    "sampling": sampling(shaped=True),
}


@pytest.fixture(autouse=True, scope="module")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here is compiled here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", SOME)
def test_a_kernel_compiles_without_spills_within_its_chip(name: str, chip: int) -> None:
    """No spills, shared memory that is there, loads of 16 bytes, and tensor cores for attention."""
    assert not faults(name, compile_ahead(SOME[name](chip), chip), chip)


def test_the_table_has_every_head_size_and_kind_of_step() -> None:
    """So that the script leaves nothing out."""
    names = [name for name, _ in table()]
    assert len(set(names)) == len(names)
    for head_dim in (64, 80, 96, 128, 256):
        for step in ("decode", "chunk", "prompt"):
            for cache in ("16-bit", "fp8"):
                assert f"attention, head {head_dim}, {step}, {cache} cache" in names


def test_what_is_wrong_is_found() -> None:
    """The check is sharp: it names spills, too much shared memory, and products and loads of the wrong kind."""
    batch = PagedBatch(
        query_starts=empty(2, dtype=torch.int32),
        context_lengths=empty(1, dtype=torch.int32),
        tables=empty(1, 16, dtype=torch.int32),
        max_query_length=512,
        max_context_length=512,
    )
    queries, cache, too_large = empty(512, 32, 128), empty(9, 16, 2, 8, 128), Tiles(128, 64, 4, 2)
    terms = AttentionTerms(scale=1.0)
    (launch,) = paged_attention_launches(queries, cache, batch, terms, queries, tiles=too_large, splits=1, chip=80)
    compiled = compile_ahead(launch, 80)
    assert [fault.split(" bytes")[0][:25] for fault in faults("attention", compiled, 80)] == [
        "attention, sm_80: spills "
    ]
    other = attrs.evolve(compiled, spilled_bytes=0, stack_bytes=0, shared_bytes=200_000, tensor_core="", wide_loads=0)
    assert faults("attention", other, 80) == [
        "attention, sm_80: 200000 bytes of shared memory; the chip has 166912",
        "attention, sm_80: multiplies matrices without tensor cores",
        "attention, sm_80: loads nothing in 16 bytes at once",
    ]
