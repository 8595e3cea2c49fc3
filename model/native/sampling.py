"""Rows of logits by the kernels: penalties, the choice of a token in one call that looks at a row once or twice, and
the most likely tokens."""

import ctypes

import numpy as np
import torch

from ..row_kernels import BoolArray, Float32Array, Float64Array, Int64Array, fits
from ..sampling import Best, SamplingRows
from .library import Library, Sampling, check


class NativeSampler:
    """`RowKernels`. Used by the device thread, between steps."""

    def __init__(self, library: Library, *, num_threads: int) -> None:
        self._library = library
        self._num_threads = num_threads

    def sample(
        self, logits: torch.Tensor, rows: SamplingRows, uniform: Float64Array, best: Best | None
    ) -> tuple[Int64Array, BoolArray]:
        """One token for each row, and which rows could be used. Raises AssertionError for logits of another kind."""
        num_rows, width = _shape(logits)
        tokens, usable = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.bool_)
        if not num_rows:
            return tokens, usable
        columns = (
            np.ascontiguousarray(rows.temperature, np.float64),
            np.ascontiguousarray(rows.top_k, np.int64),
            np.ascontiguousarray(rows.top_p, np.float64),
            np.ascontiguousarray(rows.min_p, np.float64),
            np.ascontiguousarray(uniform, np.float64),
        )
        known = (None, None) if best is None else (best.tokens.ctypes.data, best.logits.ctypes.data)
        if any(len(column) != num_rows for column in columns) or (best is not None and len(best.tokens) < num_rows):
            raise AssertionError(f"columns of another length than {num_rows} rows of logits")
        sampling = Sampling(
            num_rows,
            width,
            logits.stride(0),
            self._num_threads,
            logits.data_ptr(),
            *(column.ctypes.data for column in columns),
            *known,
            tokens.ctypes.data,
            usable.ctypes.data,
        )
        check(self._library.sample(ctypes.byref(sampling)))
        return tokens, usable

    def penalise(
        self,
        logits: torch.Tensor,
        places: Int64Array,
        lengths: Int64Array,
        ids: Int64Array,
        counts: Float32Array,
        penalties: Float32Array,
    ) -> None:
        """Raises AssertionError for rows and tokens that there are not, before any is changed."""
        num_rows, width = _shape(logits)
        if (
            not len(places) == len(lengths) == len(penalties)
            or len(ids) != int(lengths.sum())
            or len(counts) != len(ids)
        ):
            raise AssertionError("the columns of the penalties differ in length")
        columns = (
            np.ascontiguousarray(places, np.int64),
            np.ascontiguousarray(lengths, np.int64),
            np.ascontiguousarray(ids, np.int64),
            np.ascontiguousarray(counts, np.float32),
            np.ascontiguousarray(penalties, np.float32),
        )
        pointers = (column.ctypes.data for column in columns)
        check(self._library.penalise(logits.data_ptr(), logits.stride(0), num_rows, width, len(places), *pointers))

    def largest(self, values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises AssertionError for a `k` above the width."""
        num_rows, width = _shape(values)
        found, ids = torch.empty(num_rows, k), torch.empty(num_rows, k, dtype=torch.int64)
        pointers = values.data_ptr(), values.stride(0), num_rows, width, k, found.data_ptr(), ids.data_ptr()
        check(self._library.largest(*pointers, self._num_threads))
        return found, ids


def _shape(rows: torch.Tensor) -> tuple[int, int]:
    if rows.ndim != 2 or not fits(rows):
        raise AssertionError(f"logits of {rows.dtype} and strides {rows.stride()}")
    return rows.shape[0], rows.shape[1]
