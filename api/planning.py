"""`triolet plan`: what a model would take and give on a machine, as a table or as JSON. No weights are loaded."""

import os
from typing import Annotated, Any, Literal

import attrs
import msgspec
from cyclopts import Parameter

from ..engine.config import GPU_MEMORY_UTILIZATION
from ..engine.core.errors import ConfigurationError
from ..engine.estimate import GIB, Estimate, Hardware, Shape, estimate, find_gpu, weights_by_dtype

MIB = 1 << 20

Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
Numbers = Annotated[tuple[int, ...], Parameter(negative=(), consume_multiple=True)]


@attrs.frozen(kw_only=True)
class MachineOptions:
    """Which machine, and what of it a model may take."""

    gpu: str | None = None
    """A GPU by its name (H100, A100-80GB, L4, …): its memory, bandwidth and arithmetic."""
    memory: int | None = None
    """Bytes of the device (80GiB); in place of the GPU's own, or of this machine's."""
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    """The share of the memory that weights, activations and KV cache may take together."""
    activations: int = 1 << 30
    """Bytes that a step takes beside weights and KV cache."""
    bandwidth: float | None = None
    """GB/s of the device's memory, for the roofline; a GPU brings its own."""
    tflops: float | None = None
    """Dense 16-bit arithmetic of the device, in TFLOP/s; a GPU brings its own."""
    dtype: Dtype = "auto"
    """The type of the weights; auto is the checkpoint's."""
    kv_cache_dtype: KVDtype = "auto"
    """The type of the KV cache; auto is that of the weights, or the checkpoint's where they have fewer bits."""
    block_size: int = 16
    """Tokens in a KV block."""
    json: Annotated[bool, Parameter(negative=())] = False
    """Print JSON instead of the table."""

    def __attrs_post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigurationError(
                f"--gpu-memory-utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}."
            )
        if self.block_size < 1:
            raise ConfigurationError("--block-size must be at least 1.")


@attrs.frozen(kw_only=True)
class PlanOptions(MachineOptions):
    """And what to count."""

    lengths: Numbers = (512, 2048, 8192)
    """Lengths of sequences, prompt and answer together."""
    batch_sizes: Numbers = (1, 8, 32, 128)
    """Sequences that decode together."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for flag, numbers in (("--lengths", self.lengths), ("--batch-sizes", self.batch_sizes)):
            if min(numbers, default=0) < 1:
                raise ConfigurationError(f"{flag} must be at least 1.")


def hardware_of(options: MachineOptions) -> Hardware:
    """The machine that the options describe. Raises ConfigurationError."""
    own = Hardware(name="this machine", memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if options.gpu is not None:
        own = find_gpu(options.gpu)
    elif options.memory is not None:
        own = attrs.evolve(own, name="a device")
    return attrs.evolve(
        own,
        memory_bytes=own.memory_bytes if options.memory is None else options.memory,
        bytes_per_s=own.bytes_per_s if options.bandwidth is None else options.bandwidth * 1e9,
        flops=own.flops if options.tflops is None else options.tflops * 1e12,
    )


def make_estimate(shape: Shape, options: MachineOptions, *, model_dtype: str) -> tuple[Estimate, str, str]:
    """With the types of the weights and of the KV cache. Raises ConfigurationError."""
    dtype = model_dtype if options.dtype == "auto" else options.dtype
    kv_dtype = options.kv_cache_dtype
    if kv_dtype == "auto":
        kv_dtype = model_dtype if dtype in ("int8", "int4") else dtype  # type: ignore[assignment]
    found = estimate(
        shape,
        hardware_of(options),
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=options.block_size,
        utilization=options.gpu_memory_utilization,
        activation_bytes=options.activations,
    )
    return found, dtype, kv_dtype


def make_plan(name: str, shape: Shape, options: PlanOptions, *, model_dtype: str, model_len: int) -> dict[str, Any]:
    """Everything that is shown, in the order and under the names of the JSON. Sizes in bytes, times in seconds."""
    found, dtype, kv_dtype = make_estimate(shape, options, model_dtype=model_dtype)
    return {
        "model": name,
        "device": found.hardware.name,
        "memory_bytes": found.hardware.memory_bytes,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "num_weights": found.num_weights,
        "dtype": dtype,
        "weight_bytes": found.weight_bytes,
        "weight_bytes_by_dtype": weights_by_dtype(shape),
        "activation_bytes": options.activations,
        "kv_cache_dtype": kv_dtype,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "bytes_per_block": found.bytes_per_block,
        "block_size": found.block_size,
        "kv_bytes": found.kv_bytes,
        "num_blocks": found.num_blocks,
        "num_tokens": found.num_tokens,
        "max_model_len": model_len,
        "largest_max_model_len": found.largest_model_len(model_len),
        "sequences": [
            {
                "num_tokens": length,
                "most_sequences": found.most_sequences(length),
                "prefill_seconds": found.prefill_seconds(length),
            }
            for length in options.lengths
        ],
        "steps": [_step(found, batch, length) for length in options.lengths for batch in options.batch_sizes],
    }


def _step(found: Estimate, batch: int, length: int) -> dict[str, Any]:
    seconds = found.step_seconds(num_tokens=batch, num_context=batch * length)
    return {
        "batch_size": batch,
        "context": length,
        "fits": batch <= found.most_sequences(length),
        "step_seconds": seconds,
        "tokens_per_s": None if seconds is None else batch / seconds,
    }


def print_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    """On stdout."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(plan)).decode())
        return
    from rich.console import Console

    console = Console()
    console.print(_facts(plan), _sequences(plan), sep="\n\n")
    if plan["steps"][0]["step_seconds"] is None:
        console.print("\nNo roofline: name a --gpu, or give --bandwidth and --tflops.")
    else:
        console.print(_steps(plan))


def _facts(plan: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{plan['model']} on {plan['device']}", show_header=False)
    by_dtype = ", ".join(f"{name} {size / GIB:.2f}" for name, size in plan["weight_bytes_by_dtype"].items())
    rows = {
        "memory": f"{plan['memory_bytes'] / GIB:.2f} GiB x {plan['gpu_memory_utilization']:g}",
        "weights": f"{plan['num_weights']:,} as {plan['dtype']}: {plan['weight_bytes'] / GIB:.2f} GiB",
        "weights, GiB": by_dtype,
        "activations": f"{plan['activation_bytes'] / GIB:.2f} GiB",
        "KV cache": f"{plan['kv_bytes'] / GIB:.2f} GiB as {plan['kv_cache_dtype']}",
        "KV of a token": f"{plan['kv_bytes_per_token'] / 1024:.4g} KiB",
        "KV block": f"{plan['block_size']} tokens, {plan['bytes_per_block'] / MIB:.4g} MiB",
        "blocks": f"{plan['num_blocks']:,}",
        "tokens": f"{plan['num_tokens']:,}",
        "largest --max-model-len": f"{plan['largest_max_model_len']:,} (the model's own: {plan['max_model_len']:,})",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _sequences(plan: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("tokens of a sequence", "most at once", "prefill, at least", title="Sequences")
    for row in plan["sequences"]:
        seconds = row["prefill_seconds"]
        shown = "—" if seconds is None else f"{seconds * 1e3:.3g} ms"
        table.add_row(f"{row['num_tokens']:,}", f"{row['most_sequences']:,}", shown)
    return table


def _steps(plan: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("context", "batch", "step, at least", "tokens/s, at most", title="Decoding, by the roofline")
    for row in plan["steps"]:
        speed = f"{row['tokens_per_s']:,.0f}" + ("" if row["fits"] else "  (does not fit)")
        table.add_row(f"{row['context']:,}", f"{row['batch_size']:,}", f"{row['step_seconds'] * 1e3:.3g} ms", speed)
    return table
