"""What a GPU's memory goes to: weights, the largest step, graphs, and the KV cache in what is left.

    KV cache = total × utilization − weights − what others have in use − the peak of a step − graphs

The numbers are measured, once, after the weights have been loaded. Whoever measures is an argument, so that the
arithmetic can be tried without a GPU.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
import torch

from ..engine.core.errors import ConfigurationError
from .llama import LlamaModel
from .memory import GIB, DeviceMemory, device_memory


@attrs.frozen(kw_only=True)
class GpuMemory:
    """Bytes, but for the share."""

    total: int
    utilization: float
    weights: int
    others: int
    """In use beside the weights: the driver's context, libraries, other processes."""
    activations: int
    """The largest step, at its peak."""
    graphs: int = 0

    @property
    def kv_cache(self) -> int:
        """What is left; below 0: nothing is."""
        return int(self.total * self.utilization) - self.weights - self.others - self.activations - self.graphs

    def __str__(self) -> str:
        total, weights, others, activations, graphs, left = (
            f"{size / GIB:.2f}"
            for size in (self.total, self.weights, self.others, self.activations, self.graphs, self.kv_cache)
        )
        return (
            f"GPU memory: {total} GiB × {self.utilization} − weights {weights} − in use beside them {others} − the "
            f"largest step {activations} − graphs {graphs} = {left} GiB for the KV cache"
        )


class MemoryReader(Protocol):
    """Measures a device."""

    def now(self) -> DeviceMemory:
        """All of it, and what could be allocated now, with caches let go."""

    def peak_of(self, run: Callable[[], None]) -> int:
        """Bytes that `run` takes at its peak, on top of what is there."""

    def kept_by(self, make: Callable[[], object]) -> int:
        """Bytes that are gone while what `make` returns lives. It is let go then."""


def plan_gpu_memory(
    *,
    weights: int,
    utilization: float,
    largest_step: Callable[[], None],
    graphs: Callable[[], object] | None,
    reader: MemoryReader,
) -> GpuMemory:
    """Run the largest step once, record graphs once (None: there are none), and count.

    Raises `ConfigurationError` naming the flags where nothing is left for a KV cache.
    """
    before = reader.now()
    activations = reader.peak_of(largest_step)
    kept = 0 if graphs is None else reader.kept_by(graphs)
    found = GpuMemory(
        total=before.total,
        utilization=utilization,
        weights=weights,
        others=max(0, before.total - before.free - weights),
        activations=activations,
        graphs=kept,
    )
    if found.kv_cache <= 0:
        raise ConfigurationError(
            f"No memory is left for the KV cache. {found}. Raise --gpu-memory-utilization, or lower "
            f"--max-num-batched-tokens or --max-num-seqs; --quantization fp8 halves the weights."
        )
    return found


class CudaReader:
    """Torch's own statistics, and the driver's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> DeviceMemory:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return device_memory(self._device)

    def peak_of(self, run: Callable[[], None]) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        had = torch.cuda.memory_allocated(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device) - had)

    def kept_by(self, make: Callable[[], object]) -> int:
        before = self.now().free
        made = make()
        kept = before - self.now().free
        del made
        torch.cuda.empty_cache()
        return max(0, kept)


def weight_bytes(model: LlamaModel) -> int:
    """What the weights take; a tensor that is used twice counts once."""
    tensors: dict[int, torch.Tensor] = {}

    def note(value: object) -> None:
        if isinstance(value, torch.Tensor):
            tensors[value.data_ptr()] = value
        elif attrs.has(kind := type(value)):
            for field in attrs.fields(kind):
                note(getattr(value, field.name))

    for value in (model.embedding, model.norm, model.head, *model.layers):
        note(value)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def run_largest_step(model: LlamaModel, *, num_tokens: int, num_sequences: int) -> None:
    """All that a step allocates but attention's own, which works in blocks: a full budget, every sequence sampled."""
    with torch.inference_mode():
        positions = torch.arange(num_tokens, device=model.device) % model.spec.max_position_embeddings
        token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=model.device)
        logits = model.forward(token_ids, positions, lambda layer, q, k, v: q.contiguous(), positions[:num_sequences])
        logits.softmax(-1).sort(-1)
