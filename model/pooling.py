"""Vectors in the making: from the states of a step's tokens to one vector for each sequence that asks for one.

Imports numpy and the message types. The sum of a mean is taken in float64, token after token, so that a vector does not
depend on the chunks in which its prompt was computed.
"""

from collections.abc import Iterable

import attrs
import numpy as np
import numpy.typing as npt

from ..engine.core.ids import SequenceId
from ..engine.core.pooling import Pooling
from .batch import KeptBatch, StepWork

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@attrs.frozen(kw_only=True, eq=False)
class Pooled:
    """What a step's states gave."""

    vectors: tuple[tuple[SequenceId, bytes], ...] = ()
    failed: tuple[SequenceId, ...] = ()
    """Sequences whose states are not numbers."""


class Pools:
    """One runner's, beside its batch."""

    def __init__(self) -> None:
        self._sums: dict[SequenceId, Float64Array] = {}

    def forget(self, sequences: Iterable[SequenceId]) -> None:
        """They left the batch."""
        if self._sums:
            for sequence in sequences:
                self._sums.pop(sequence, None)

    def take(self, states: Float32Array, batch: KeptBatch, work: StepWork) -> Pooled:
        """`states` `[len(work.pooled_tokens), hidden]`: those of this step, in its order."""
        if not work.pooled:
            return Pooled()
        vectors, failed, at = [], [], 0
        for row, count, is_last in work.pooled:
            sequence = batch.sequence(row)
            pooling, num_tokens = batch.pooling(row)
            own = states[at : at + count].astype(np.float64)
            at += count
            total = own[-1]
            if pooling.needs_every_state:
                before = self._sums.pop(sequence, None)
                total = np.add.reduce(own if before is None else np.vstack((before, own)), axis=0)
                if not is_last:
                    self._sums[sequence] = total
                    continue
                total = total / num_tokens
            if np.isfinite(total).all():
                vectors.append((sequence, _finished(total, pooling)))
            else:
                failed.append(sequence)
        return Pooled(vectors=tuple(vectors), failed=tuple(failed))


def _finished(vector: Float64Array, pooling: Pooling) -> bytes:
    vector = vector[: pooling.dimensions]
    if pooling.normalize and (norm := float(np.linalg.norm(vector))):
        vector = vector / norm
    return vector.astype("<f4").tobytes()
