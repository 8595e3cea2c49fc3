"""The forward pass of a step, by torch or by the native kernels: from the flat batch to the logits of its sampled rows.

Both write K and V of the step's tokens into their cache. Called by the device thread alone, under
`torch.inference_mode`.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from . import row_kernels
from .attention import AttentionBackend, AttentionShape, choose_backend
from .batch import StepWork
from .kv import KVTensors
from .llama import LlamaModel
from .native.forward import NativeForward
from .native.kv import NativeKV
from .native.weights import NativeModel
from .sampling import Best

Float32Array = npt.NDArray[np.float32]


class ForwardPass(Protocol):
    """A model bound to its cache."""

    states: Float32Array
    """`[len(work.pooled_tokens), hidden_size]` of the last call: what the model's last norm gives at these tokens.
    Valid until the next call."""

    def __call__(self, work: StepWork) -> tuple[torch.Tensor, Best | None]:
        """Logits `[len(work.sampled_rows), vocab_size]` in float32, valid until the next call, and where each row's
        largest is if that is known. The caller may change the logits."""


class TorchForward:
    """Torch operations, attention by a backend of the registry."""

    def __init__(self, model: LlamaModel, kv: KVTensors, attention_backend: str | None = None) -> None:
        """Raises `ConfigurationError` for a name that is not known or cannot run here."""
        self.model = model
        self.attention: AttentionBackend = choose_backend(attention_backend, model.device.type)(
            AttentionShape.of(model.spec), kv
        )
        self.states: Float32Array = np.empty((0, model.spec.hidden_size), np.float32)

    def __call__(self, work: StepWork) -> tuple[torch.Tensor, None]:
        backend, device = self.attention, self.model.device
        metadata = backend.prepare(work.layout)

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            backend.write(layer, keys, values, metadata)
            return backend.attend(layer, queries, metadata)

        hidden = self.model.hidden(
            torch.from_numpy(work.token_ids).to(device), torch.from_numpy(work.positions).to(device), attend
        )
        if work.pooled:
            pooled = self.model.normed(hidden, torch.from_numpy(work.pooled_tokens).to(device))
            self.states = pooled.float().cpu().numpy()
        return self.model.logits(hidden, torch.from_numpy(work.sampled_tokens).to(device)), None


def make_forward(
    model: LlamaModel | NativeModel,
    kv: KVTensors | NativeKV,
    attention_backend: str | None = None,
    num_threads: int = 1,
) -> ForwardPass:
    """Bind a model to the cache of its kind. `attention_backend` is for torch, `num_threads` for the native kernels.
    From now on this thread has the row kernels that go with it."""
    if isinstance(model, NativeModel) and isinstance(kv, NativeKV):
        return NativeForward(model, kv, num_threads=num_threads)
    if isinstance(model, LlamaModel) and isinstance(kv, KVTensors):
        row_kernels.use(None)  # the thread may have carried out a native model's steps before
        return TorchForward(model, kv, attention_backend)
    raise AssertionError(f"a {type(model).__name__} cannot use a {type(kv).__name__}")
