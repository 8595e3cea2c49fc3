"""Steps made by hand: sequences with tables of scattered blocks, over a cache whose unused memory is poisoned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from triolet.model.attention.interface import StepLayout
from triolet.model.batch import StepWork
from triolet.model.forward import ForwardPass
from triolet.model.kv import KVTensors
from triolet.model.native.forward import NativeForward
from triolet.model.native.kv import NativeKV
from triolet.model.native.library import Format, Library
from triolet.model.native.weights import pack_model
from triolet.model.spec import ModelSpec

BLOCK = 16
POISON = 0xFF
"""Every byte of the cache at first: NaN in every float format."""


class Sequences:
    """Sequences of known tokens that are computed in whatever pieces a test says, by one forward pass."""

    def __init__(self, forward: ForwardPass, tokens: Sequence[Sequence[int]], *, num_blocks: int = 64) -> None:
        self.forward = forward
        self.tokens = [np.array(one, np.int64) for one in tokens]
        self.computed = [0] * len(tokens)
        scattered = [(i * 37 + 11) % num_blocks for i in range(num_blocks)]
        width = max(-(-len(one) // BLOCK) for one in tokens)
        self.tables = np.array([[scattered.pop() for _ in range(width)] for _ in tokens], np.int32)

    def work(self, lengths: Sequence[int], *, every_row: bool = True) -> StepWork:
        """Each sequence computes so many tokens (0: it rests); all their rows are sampled, or the last ones alone."""
        rows = np.flatnonzero(lengths)
        counts = np.array(lengths, np.int64)[rows]
        starts = np.array(self.computed, np.int64)[rows]
        positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
        row_of_token = np.repeat(rows, counts)
        slots = self.tables[row_of_token, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
        sampled = np.arange(len(positions)) if every_row else np.cumsum(counts) - 1
        return StepWork(
            rows=rows,
            token_ids=np.array([self.tokens[r][p] for r, p in zip(row_of_token, positions, strict=True)], np.int64),
            positions=positions,
            layout=StepLayout(
                query_lengths=counts,
                context_lengths=starts + counts,
                tables=(np.ascontiguousarray(self.tables[rows]),),
                write_slots=(slots,),
            ),
            sampled_rows=row_of_token[sampled],
            sampled_tokens=sampled,
        )

    def step(self, lengths: Sequence[int], **options: Any) -> torch.Tensor:
        """The logits of the step's sampled rows."""
        with torch.inference_mode():
            logits, best = self.forward(self.work(lengths, **options))
        for row, length in enumerate(lengths):
            self.computed[row] += length
        if best is not None:
            assert best.tokens.tolist() == logits.argmax(-1).tolist()
            assert np.array_equal(best.logits, logits.max(-1).values.numpy())
        return logits.clone()

    def run(self, pieces: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Steps one behind the other; the logits of every position, by sequence."""
        logits: list[list[torch.Tensor]] = [[] for _ in self.tokens]
        for lengths in pieces:
            parts = self.step(lengths).split([length for length in lengths if length])
            for row, part in zip(np.flatnonzero(lengths), parts, strict=True):
                logits[row].append(part)
        return [torch.cat(parts) for parts in logits]


def native_forward(
    library: Library,
    spec: ModelSpec,
    weights: Any,
    format: Format,
    *,
    kv: Format | None = None,
    num_blocks: int = 64,
    threads: int = 2,
    **soft_caps: float,
) -> NativeForward:
    """The kernels over these weights and a poisoned cache."""
    model = pack_model(library, spec, weights, format=format)
    plain = Format.FLOAT32 if format is Format.FLOAT32 else Format.BFLOAT16
    cache = NativeKV(library, spec, num_blocks=num_blocks, block_size=BLOCK, format=kv or plain)
    cache.memory[:] = POISON
    forward = NativeForward(model, cache, num_threads=2, **soft_caps)
    forward.threads.choose = lambda num_tokens: threads  # type: ignore[method-assign]
    return forward


def poisoned_tensors(spec: ModelSpec, dtype: torch.dtype, *, num_blocks: int = 64) -> KVTensors:
    """The torch cache likewise."""
    kv = KVTensors(spec, num_blocks=num_blocks, block_size=BLOCK, dtype=dtype)
    for tensor in kv.tensors:
        tensor.fill_(float("nan"))
    return kv
