"""What an attention backend is: `prepare` once a step, then `write` and `attend` once a layer.

The batch is flat. The tokens of a step stand one behind the other, sequence after sequence; sequence i has
`query_lengths[i]` of them, the last of its `context_lengths[i]` tokens:

    positions   [0, context - query)   [context - query, context)
                in the KV cache        computed in this step

Token t sees the keys of positions `[0, t]` of its own sequence, with a sliding window the last `window` of them. A
backend may read only slots whose position is in the sequence's context; other slots hold anything, also NaN.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import attrs
import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..kv import KVTensors
from ..spec import ModelSpec

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


@attrs.frozen(kw_only=True)
class AttentionShape:
    """What a backend must know of the model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """The sliding window of each layer, in tokens, itself included; None is full attention."""

    @classmethod
    def of(cls, spec: ModelSpec) -> "AttentionShape":
        windows = tuple(spec.sliding_window if i in spec.sliding_layers else None for i in range(spec.num_layers))
        return cls(num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, windows=windows)


@attrs.frozen(kw_only=True, eq=False)
class StepLayout:
    """Where a step's tokens are, on the host. The arrays belong to the batch and are valid until its next step."""

    query_lengths: Int64Array
    """Tokens computed in this step, for each sequence that computes any; at least 1."""
    context_lengths: Int64Array
    """Tokens each of them has in the cache once this step's are written."""
    tables: tuple[Int32Array, ...]
    """For each KV group the block tables `[num_sequences, width]`; -1 where there is no block."""
    write_slots: tuple[Int64Array, ...]
    """For each KV group the row of each token in `KVTensors.rows`."""


class AttentionBackend(ABC):
    """One implementation, bound to a model's shape and its KV tensors. Called by the device thread alone."""

    name: ClassVar[str]
    """What `--attention-backend` calls it."""

    def __init__(self, shape: AttentionShape, kv: KVTensors) -> None:
        self.shape = shape
        self.kv = kv

    @classmethod
    @abstractmethod
    def unusable(cls, device_type: str) -> str | None:
        """Why this backend cannot run on such a device (`cpu`, `cuda`), or None if it can."""

    @abstractmethod
    def prepare(self, layout: StepLayout) -> Any:
        """The metadata of a step, in the backend's own form; handed back to `write` and `attend` of every layer."""

    @abstractmethod
    def write(self, layer: int, keys: Tensor, values: Tensor, metadata: Any) -> None:
        """Put keys and values `[num_tokens, num_kv_heads, head_dim]` of the step's tokens into their slots."""

    @abstractmethod
    def attend(self, layer: int, queries: Tensor, metadata: Any) -> Tensor:
        """Outputs `[num_tokens, num_heads, head_dim]` for queries of that shape, after `write` of the same layer."""
