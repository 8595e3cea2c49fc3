"""Where the time of a native step goes, and how far it is from what the machine can do at most.

    python -m bench.ceiling
    python -m bench.ceiling --variants int8

First the machine: bytes read from memory and bfloat16 products summed in registers, a second, by a loop that does
nothing else. Then for each step its bound (weights and KV through the memory, or operations through the arithmetic
units, whichever takes longer), what it takes, and the milliseconds of each kind of operation beside what its own bytes
and operations would take at least.
"""

import argparse
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from triolet.engine.estimate import Estimate, Hardware, estimate
from triolet.model.native.build import find_compiler
from triolet.model.native.forward import NativeForward
from triolet.model.native.weights import padded
from triolet.model.source import resolve_source
from triolet.model.spec import ModelSpec
from triolet.model.weights import read_spec

from .native_steps import native_forward, step
from .step import CASES, NUM_BLOCKS, VARIANTS

FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-w")
DTYPES = {"bfloat16": "bfloat16", "bfloat16-kv8": "bfloat16", "int8": "int8", "int8-kv8": "int8", "int4": "int4"}
WEIGHT_BYTES = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.5625}
OPERATIONS = {"bfloat16": 1.0, "int8": 2.0, "int4": 2.0}
"""How many of a format's operations there are to one of bfloat16, in the same time."""


def probe(threads: int) -> Hardware:
    """This machine, measured."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        source = Path(__file__).with_name("probe.cpp")
        subprocess.run([*find_compiler().command, *FLAGS, str(source), "-o", str(library)], check=True)
        functions = ctypes.CDLL(str(library))
        functions.probe_bandwidth.restype = functions.probe_operations.restype = ctypes.c_double
        bandwidth, operations = functions.probe_bandwidth(threads), functions.probe_operations(threads)
    return Hardware(name="here", memory_bytes=8 << 30, bytes_per_s=bandwidth, flops=operations)


def parts(
    spec: ModelSpec, bound: Estimate, variant: str, *, rows: int, sampled: int, pairs: int, read: int
) -> dict[str, float]:
    """For each operation the seconds that its bytes and its operations take at least.

    `pairs`: tokens times what they attend to. `read`: tokens of context, each once.
    """
    dtype = DTYPES[variant]
    hidden, kv = spec.hidden_size, spec.num_kv_heads * spec.head_dim
    heads, layers = spec.num_heads * spec.head_dim, spec.num_layers
    matrices = {
        "gemm qkv": (layers * hidden * (heads + 2 * kv), rows),
        "gemm o": (layers * heads * hidden, rows),
        "gemm gate_up": (layers * hidden * 2 * spec.intermediate_size, rows),
        "gemm down": (layers * hidden * spec.intermediate_size, rows),
        "gemm head": (hidden * padded(spec.vocab_size), sampled),
    }
    assert bound.hardware.bytes_per_s is not None
    assert bound.hardware.flops is not None
    least = {
        name: max(
            weights * WEIGHT_BYTES[dtype] / bound.hardware.bytes_per_s,
            2 * weights * count / (bound.hardware.flops * OPERATIONS[dtype]),
        )
        for name, (weights, count) in matrices.items()
    }
    least["attention"] = max(
        read * bound.kv_bytes_per_token / bound.hardware.bytes_per_s,
        pairs * bound.attention_flops_per_token / bound.hardware.flops,
    )
    return least


def report(name: str, forward: NativeForward, spec: ModelSpec, bound: Estimate, variant: str, steps: int) -> None:
    """One step's table."""
    for case, batch, context, count in CASES:
        if name not in case:
            continue
        work = step(range(5, 5 + count), batch=batch, context=context, num_blocks=NUM_BLOCKS)
        best = float("inf")
        forward.profile = False
        for _ in range(steps):
            started = time.perf_counter()
            forward(work)
            best = min(best, time.perf_counter() - started)
        forward.profile = True
        forward.tape.take_seconds()
        for _ in range(steps):
            forward(work)
        spent = {label: seconds / steps for label, seconds in forward.tape.take_seconds().items()}
        pairs = batch * (count * (context - count) + count * (count + 1) // 2)
        least = parts(spec, bound, variant, rows=batch * count, sampled=batch, pairs=pairs, read=batch * context)
        total = sum(least.values())
        print(f"{case}, {variant}: {best * 1e3:.2f} ms, at least {total * 1e3:.2f}: {total / best:.0%} of the ceiling")
        for label, seconds in sorted(spent.items(), key=lambda item: -item[1]):
            if seconds > 2e-5:
                share = f"{least[label] * 1e3:8.2f} {least[label] / seconds:6.0%}" if label in least else ""
                print(f"    {label:<14}{seconds * 1e3:8.2f}{share}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default="bfloat16,int8", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    machine, source = probe(arguments.threads), resolve_source(None)
    spec = read_spec(source)
    assert machine.bytes_per_s is not None
    assert machine.flops is not None
    rates = f"{machine.bytes_per_s / 1e9:.1f} GB/s, {machine.flops / 1e9:.0f} GFLOP/s of bfloat16"
    print(f"{arguments.threads} threads: {rates}")
    print("    operation           ms   at least  share")
    for variant in arguments.variants.split(","):
        kv_dtype = "int8" if variant.endswith("kv8") else "bfloat16"
        bound = estimate(spec, machine, dtype=DTYPES[variant], kv_dtype=kv_dtype)
        forward = native_forward(source, VARIANTS[variant], num_blocks=NUM_BLOCKS, threads=arguments.threads)
        forward.threads.choose = lambda num_tokens: arguments.threads  # type: ignore[method-assign]
        with torch.inference_mode():
            report(arguments.cases, forward, spec, bound, variant, arguments.steps)


if __name__ == "__main__":
    main()
