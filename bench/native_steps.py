"""What bench/step.py and bench/accuracy.py share: the built-in model in every format, and steps made by hand."""

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from triolet.model.attention.interface import StepLayout
from triolet.model.batch import StepWork
from triolet.model.forward import ForwardPass, TorchForward
from triolet.model.kv import KVTensors
from triolet.model.llama import build_model
from triolet.model.native.forward import NativeForward
from triolet.model.native.kv import NativeKV
from triolet.model.native.library import Format, load_library
from triolet.model.native.weights import pack_model
from triolet.model.source import ModelSource
from triolet.model.weights import read_spec, read_weights

BLOCK = 16


@attrs.frozen
class Variant:
    """A way to run the model."""

    weights: Format
    kv: Format

    @property
    def name(self) -> str:
        kv = "" if self.kv is not Format.INT8 else ", int8 KV"
        return f"native {self.weights.name.lower()}{kv}"


VARIANTS = (
    Variant(Format.FLOAT32, Format.FLOAT32),
    Variant(Format.BFLOAT16, Format.BFLOAT16),
    Variant(Format.BFLOAT16, Format.INT8),
    Variant(Format.INT8, Format.BFLOAT16),
    Variant(Format.INT8, Format.INT8),
    Variant(Format.INT4, Format.BFLOAT16),
)


def native_forward(source: ModelSource, variant: Variant, *, num_blocks: int, threads: int) -> NativeForward:
    library, spec = load_library(), read_spec(source)
    library.resize_pool(threads)
    model = pack_model(library, spec, read_weights(source, spec), format=variant.weights)
    kv = NativeKV(library, spec, num_blocks=num_blocks, block_size=BLOCK, format=variant.kv)
    return NativeForward(model, kv, num_threads=threads)


def torch_forward(source: ModelSource, dtype: torch.dtype, *, num_blocks: int) -> TorchForward:
    spec = read_spec(source)
    kv = KVTensors(spec, num_blocks=num_blocks, block_size=BLOCK, dtype=dtype)
    for tensor in kv.tensors:
        tensor.zero_()
    return TorchForward(build_model(spec, read_weights(source, spec), dtype=dtype), kv)


def step(tokens: Sequence[int], *, batch: int, context: int, num_blocks: int, every_row: bool = False) -> StepWork:
    """`batch` sequences, each computing these tokens as the last of its context, in scattered blocks."""
    count, width = len(tokens), -(-context // BLOCK)
    assert batch * width <= num_blocks
    tables = np.random.default_rng(0).permutation(num_blocks)[: batch * width].reshape(batch, width).astype(np.int32)
    positions = np.tile(np.arange(context - count, context), batch)
    rows = np.repeat(np.arange(batch), count)
    slots = tables[rows, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    sampled = np.arange(batch * count) if every_row else np.arange(1, batch + 1) * count - 1
    return StepWork(
        rows=np.arange(batch),
        token_ids=np.tile(np.array(tokens, np.int64), batch),
        positions=positions,
        layout=StepLayout(
            query_lengths=np.full(batch, count),
            context_lengths=np.full(batch, context),
            tables=(tables,),
            write_slots=(slots,),
        ),
        sampled_rows=rows[sampled],
        sampled_tokens=sampled,
    )


def logits_of(forward: ForwardPass, tokens: Sequence[int], *, num_blocks: int, decodes: int = 8) -> torch.Tensor:
    """The logits of every position: a chunk, then the last tokens one by one, as a request has them."""
    parts, start = [], 0
    chunk = len(tokens) - decodes
    with torch.inference_mode():
        for length in (chunk, *[1] * decodes):
            some = tokens[start : start + length]
            start += length
            # One permutation of the blocks for all lengths: the tables of a sequence only grow.
            work = step(some, batch=1, context=start, num_blocks=num_blocks, every_row=True)
            parts.append(forward(work)[0].clone())
    return torch.cat(parts)
