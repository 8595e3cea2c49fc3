"""top_p by the kernels: one pass over a row for its bins, one for the bin where the cut is, one that cuts."""

import ctypes

import numpy as np
import numpy.typing as npt

from .library import Library, check

Float32Array = npt.NDArray[np.float32]


class NucleusKernel:
    """Cuts rows of weights. Used by the device thread, between steps."""

    def __init__(self, library: Library, *, num_threads: int) -> None:
        self._library = library
        self._num_threads = num_threads

    def __call__(
        self, weights: Float32Array, scaled: Float32Array, rows: npt.NDArray[np.int64], top_p: npt.NDArray[np.float64]
    ) -> None:
        """Of these rows of `weights`, exp(scaled) or 0, the largest stay that together have their top_p of the sum.

        `scaled` is at most 0. Raises AssertionError for rows that there are not.
        """
        chosen, shares = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(top_p, np.float64)
        if weights.shape != scaled.shape or weights.strides[1] != 4 or scaled.strides[1] != 4:
            raise AssertionError(f"weights of shape {weights.shape} and logits of shape {scaled.shape}")
        check(
            self._library.keep_nucleus(
                weights.ctypes.data,
                weights.strides[0] // 4,
                scaled.ctypes.data,
                scaled.strides[0] // 4,
                *(*weights.shape, len(chosen)),
                chosen.ctypes.data_as(ctypes.c_void_p),
                shares.ctypes.data_as(ctypes.c_void_p),
                self._num_threads,
            )
        )
