"""What a thread uses on rows of logits in place of torch's operations: the native kernels where it runs them.

Imports torch and numpy. Who asks for kernels has the law in torch beside it; rounding apart they do the same.
"""

import threading
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .sampling import Best, SamplingRows

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class RowKernels(Protocol):
    """Operations on rows of float32 on a CPU, whose values lie side by side."""

    def sample(
        self, logits: Tensor, rows: "SamplingRows", uniform: Float64Array, best: "Best | None"
    ) -> tuple[Int64Array, BoolArray]:
        """As `sampling.sample`, with a uniform number for each row; what is masked is at -inf already. Only reads."""

    def penalise(
        self,
        logits: Tensor,
        places: Int64Array,
        lengths: Int64Array,
        ids: Int64Array,
        counts: Float32Array,
        penalties: Float32Array,
    ) -> None:
        """Penalties on the tokens of these rows: so many of `ids` each, with their counts in the answer, one row of
        `penalties` (repetition, frequency, presence) each."""

    def largest(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As `topk.largest`; of those that equal the last, the ones with the lowest ids."""


_own = threading.local()


def use(kernels: RowKernels | None) -> None:
    """From now on this thread has these; None: torch alone."""
    _own.kernels = kernels


def in_use() -> RowKernels | None:
    """What this thread has."""
    return getattr(_own, "kernels", None)


def fits(rows: Tensor) -> bool:
    """Whether kernels can read such rows."""
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and (rows.stride(1) == 1 or rows.shape[1] == 1)


def kernels_for(rows: Tensor) -> RowKernels | None:
    """What this thread has for such rows."""
    return in_use() if fits(rows) else None
