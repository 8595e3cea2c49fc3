"""What a model takes and gives on a machine, before it is loaded: bytes, blocks, sequences, and the roofline of a step.

Pure arithmetic over a model's shape. A step can be no faster than its bytes through the memory's bandwidth and its
operations through the arithmetic units: what is computed here is a bound, and real steps take some 1.2 to 2 times as
long.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from ..kvcache.arithmetic import block_bytes, longest_sequence, most_sequences, num_blocks_that_fit
from ..kvcache.group import KVGroup
from .config import GPU_MEMORY_UTILIZATION
from .core.errors import ConfigurationError
from .sizing import Layers, kv_groups

GIB = 1 << 30

WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5625}
"""Of one weight. int4: groups of 32 share a scale of two bytes."""
KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


class Shape(Layers, Protocol):
    """What counts of a model's spec."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def tied_embeddings(self) -> bool: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def output_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...


@attrs.frozen(kw_only=True)
class Hardware:
    """A device, as its maker describes it."""

    name: str
    memory_bytes: int
    bytes_per_s: float | None = None
    """None: not known, and no roofline."""
    flops: float | None = None
    """Dense 16-bit multiplications and additions a second."""


def _gpu(name: str, gib: float, tb_per_s: float, tflops: float) -> Hardware:
    return Hardware(name=name, memory_bytes=int(gib * GIB), bytes_per_s=tb_per_s * 1e12, flops=tflops * 1e12)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("B200", 180, 8.0, 2250),
        _gpu("H200", 141, 4.8, 989),
        _gpu("H100", 80, 3.35, 989),
        _gpu("H100-PCIe", 80, 2.0, 756),
        _gpu("A100-80GB", 80, 2.039, 312),
        _gpu("A100-40GB", 40, 1.555, 312),
        _gpu("L40S", 48, 0.864, 362),
        _gpu("L4", 24, 0.3, 121),
        _gpu("A10", 24, 0.6, 125),
        _gpu("RTX-A6000", 48, 0.768, 155),
        _gpu("RTX-4090", 24, 1.008, 165),
        _gpu("RTX-3090", 24, 0.936, 71),
        _gpu("V100", 32, 0.9, 125),
        _gpu("T4", 16, 0.32, 65),
        _gpu("MI300X", 192, 5.3, 1307),
    )
}
"""By the makers' data sheets; memory as the size that they are sold by, in GiB."""


def find_gpu(name: str) -> Hardware:
    """By its name, in any case. Raises ConfigurationError naming those there are."""
    for known, gpu in GPUS.items():
        if known.lower() == name.lower().replace(" ", "-"):
            return gpu
    raise ConfigurationError(f"--gpu {name!r} is not known; it is one of {', '.join(GPUS)}, or give --memory.")


def num_weights(shape: Shape) -> int:
    """Every number of the model."""
    hidden, heads, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    layer = hidden * (2 * heads + 2 * kv) + 3 * hidden * shape.intermediate_size + 2 * hidden
    layer += shape.attention_bias * (heads + 2 * kv) + shape.output_bias * hidden
    layer += shape.mlp_bias * (2 * shape.intermediate_size + hidden) + shape.qk_norm * 2 * shape.head_dim
    embeddings = shape.vocab_size * hidden * (1 if shape.tied_embeddings else 2)
    return shape.num_layers * layer + embeddings + hidden


def num_step_weights(shape: Shape) -> int:
    """Those that every step reads and multiplies with: all but an embedding table that is no output head."""
    return num_weights(shape) - (0 if shape.tied_embeddings else shape.vocab_size * shape.hidden_size)


@attrs.frozen(kw_only=True)
class Estimate:
    """One model on one machine."""

    num_weights: int
    num_step_weights: int
    weight_bytes: int
    step_weight_bytes: float
    bytes_per_block: int
    kv_bytes_per_token: int
    block_size: int
    kv_bytes: int
    """What is left for the KV cache."""
    num_blocks: int
    groups: tuple[KVGroup, ...]
    attention_flops_per_token: int
    """For each token of context that a token attends to."""
    hardware: Hardware

    @property
    def num_tokens(self) -> int:
        """Of one sequence after another; a model with sliding windows keeps the blocks of several groups for each."""
        return self.num_blocks * self.block_size // len(self.groups)

    def most_sequences(self, num_tokens: int) -> int:
        """Sequences of that length at once, nothing shared."""
        return most_sequences(
            num_blocks=self.num_blocks, num_tokens=num_tokens, block_size=self.block_size, groups=self.groups
        )

    def largest_model_len(self, most: int) -> int:
        """The longest sequence that fits alone, `most` at most; 0: none does."""
        return longest_sequence(num_blocks=self.num_blocks, most=most, block_size=self.block_size, groups=self.groups)

    def step_seconds(self, *, num_tokens: int, num_context: int) -> float | None:
        """The least a step takes that computes `num_tokens` and reads the KV of `num_context` tokens in all, each
        attended to once for each token computed of its sequence. None where the machine is not known."""
        if self.hardware.bytes_per_s is None:
            return None
        moved = self.step_weight_bytes + num_context * self.kv_bytes_per_token
        seconds = moved / self.hardware.bytes_per_s
        if self.hardware.flops is not None:
            flops = 2 * self.num_step_weights * num_tokens + self.attention_flops_per_token * num_context
            seconds = max(seconds, flops / self.hardware.flops)
        return seconds

    def prefill_seconds(self, num_tokens: int) -> float | None:
        """The least that a prompt takes in one step: a token attends to half of the prompt, on average."""
        if self.hardware.flops is None or self.hardware.bytes_per_s is None:
            return None
        flops = 2 * self.num_step_weights * num_tokens + self.attention_flops_per_token * num_tokens**2 // 2
        return max(self.step_weight_bytes / self.hardware.bytes_per_s, flops / self.hardware.flops)


def estimate(
    shape: Shape,
    hardware: Hardware,
    *,
    dtype: str,
    kv_dtype: str,
    block_size: int = 16,
    utilization: float = GPU_MEMORY_UTILIZATION,
    activation_bytes: int = 0,
) -> Estimate:
    """The KV cache gets memory x utilization - weights - activations. Raises ConfigurationError where that is not one
    block."""
    weight_bytes = int(num_weights(shape) * WEIGHT_BYTES[dtype])
    groups, layer_groups = kv_groups(shape)
    head = {"num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim, "element_bytes": KV_BYTES[kv_dtype]}
    layers = max(layer_groups.count(group) for group in range(len(groups)))
    size = block_bytes(num_layers=layers, block_size=block_size, **head)
    kv_bytes = int(hardware.memory_bytes * utilization) - weight_bytes - activation_bytes
    num_blocks = num_blocks_that_fit(memory_bytes=kv_bytes, bytes_per_block=size)
    if num_blocks < 1:
        raise ConfigurationError(
            f"{hardware.memory_bytes / GIB:.4g} GiB x {utilization:g} hold the weights ({weight_bytes / GIB:.4g} GiB) "
            f"and activations ({activation_bytes / GIB:.4g} GiB) and no KV block of {size / GIB:.2g} GiB beside them."
        )
    return Estimate(
        num_weights=num_weights(shape),
        num_step_weights=num_step_weights(shape),
        weight_bytes=weight_bytes,
        step_weight_bytes=num_step_weights(shape) * WEIGHT_BYTES[dtype],
        bytes_per_block=size,
        kv_bytes_per_token=block_bytes(num_layers=shape.num_layers, block_size=1, **head),
        block_size=block_size,
        kv_bytes=kv_bytes,
        num_blocks=num_blocks,
        groups=groups,
        attention_flops_per_token=4 * shape.num_layers * shape.num_heads * shape.head_dim,
        hardware=hardware,
    )


def weights_by_dtype(shape: Shape, dtypes: Sequence[str] = tuple(WEIGHT_BYTES)) -> dict[str, int]:
    """Bytes of the weights in each type."""
    return {dtype: int(num_weights(shape) * WEIGHT_BYTES[dtype]) for dtype in dtypes}
