"""A step of the model in one call of the kernels.

Used by the device thread alone. The arrays of a step are checked by the kernels before anything is touched: a table,
slot or token that does not fit raises AssertionError and leaves the cache as it was.
"""

import ctypes
import time
from collections.abc import Sequence

import numpy as np
import torch

from ..batch import StepWork
from ..row_kernels import use
from ..sampling import Best, Int64Array
from .kv import NativeKV
from .library import Step, check
from .sampling import NativeSampler
from .tape import Tape
from .threads import ThreadChooser
from .weights import NativeModel, padded


class NativeForward:
    """The kernels over a model and its cache."""

    def __init__(self, model: NativeModel, kv: NativeKV, *, num_threads: int = 1, **soft_caps: float) -> None:
        self.model, self.kv = model, kv
        self.tape = Tape(model, kv, **soft_caps)
        self.threads = ThreadChooser(num_threads)
        self.profile = False
        """Whether steps are timed operation by operation; see `Tape.take_seconds`."""
        self._width = padded(model.spec.vocab_size)
        self._logits = torch.empty(0, self._width)
        self._columns = _Columns()
        self.states = np.empty((0, model.spec.hidden_size), np.float32)
        """`[len(work.pooled_tokens), hidden_size]` of the last call."""
        model.library.resize_pool(num_threads)
        use(NativeSampler(model.library, num_threads=num_threads))

    def __call__(self, work: StepWork) -> tuple[torch.Tensor, Best]:
        """Logits `[len(work.sampled_tokens), vocab_size]`, valid until the next call, and each row's largest."""
        layout = work.layout
        num_tokens, num_sampled = len(work.token_ids), len(work.sampled_tokens)
        if num_sampled > self._logits.shape[0]:
            self._logits = torch.empty(num_sampled, self._width)
        best = Best(tokens=np.empty(num_sampled, np.int64), logits=np.empty(num_sampled, np.float32))
        tables = [np.ascontiguousarray(table) for table in layout.tables]
        states = np.empty((len(work.pooled_tokens), padded(self.model.spec.hidden_size)), np.float32)
        columns = (
            work.token_ids,
            work.positions,
            layout.query_lengths,
            layout.context_lengths,
            work.sampled_tokens,
            work.pooled_tokens,
            *layout.write_slots,
        )
        token_ids, positions, query_lengths, context_lengths, sampled, pooled, *slots = self._columns.put(columns)
        table_pointers, slot_pointers = _pointers([table.ctypes.data for table in tables]), _pointers(slots)
        threads = self.threads.choose(num_tokens)
        step = Step(
            num_tokens=num_tokens,
            num_sequences=len(layout.query_lengths),
            num_sampled=num_sampled,
            num_pooled=len(states),
            table_width=tables[0].shape[1],
            threads=threads,
            profile=self.profile,
            token_ids=token_ids,
            positions=positions,
            query_lengths=query_lengths,
            context_lengths=context_lengths,
            sampled=sampled,
            pooled=pooled,
            tables=ctypes.addressof(table_pointers),
            slots=ctypes.addressof(slot_pointers),
            logits=self._logits.data_ptr(),
            best=best.tokens.ctypes.data,
            best_logits=best.logits.ctypes.data,
            states=states.ctypes.data,
        )
        started = time.perf_counter()
        check(self.model.library.run(self.tape.handle, ctypes.byref(step)))
        self.states = states[:, : self.model.spec.hidden_size]
        self.threads.record(num_tokens, threads, time.perf_counter() - started)
        return self._logits[:num_sampled, : self.model.spec.vocab_size], best


def _pointers(addresses: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    """One behind the other."""
    return (ctypes.c_void_p * len(addresses))(*addresses)


class _Columns:
    """A step's columns of numbers, copied to where their addresses are known: numpy takes longer to say an array's
    address than to copy a short one, and a decode waits for it."""

    def __init__(self) -> None:
        self._memory = np.empty((0, 0), np.int64)
        self._address = 0

    def put(self, columns: Sequence[Int64Array]) -> list[int]:
        """Their addresses, valid until the next call."""
        longest = max(map(len, columns))
        if len(columns) > self._memory.shape[0] or longest > self._memory.shape[1]:
            self._memory = np.empty((len(columns), 2 * longest), np.int64)
            self._address = self._memory.ctypes.data
        for kept, column in zip(self._memory, columns, strict=False):
            kept[: len(column)] = column
        stride = self._memory.strides[0]
        return [self._address + i * stride for i in range(len(columns))]
