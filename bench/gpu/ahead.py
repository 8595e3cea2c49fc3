"""Compiling kernel launches for chips that are not there, and reading what came out.

ptxas and cuobjdump ship with triton, so this runs on any Linux machine on x86-64, without a GPU and without a driver.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from triolet.model.launch import Launch

CHIPS = (80, 90, 100)
"""Compute capabilities: A100, H100 and H200, B200."""
SHARED_BYTES_MAX = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""What one program may have of a processor's shared memory (CUDA C++ Programming Guide, technical specifications)."""

_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}

_WIDE = r"cp\.async\.c[ga]\.shared\.global \[[^\n]*, 0x10[,;]|ld\.global[\w.:]*\.(?:v4\.b32|v2\.b64)"


@attrs.frozen(kw_only=True)
class Compiled:
    """What a chip gets."""

    registers: int
    """Of a thread."""
    spilled_bytes: int
    """Stores and loads of registers that had no room, summed over the code."""
    stack_bytes: int
    shared_bytes: int
    tensor_core: str
    """The instruction that multiplies matrices; empty: none does."""
    wide_loads: int
    """Loads of 16 bytes from global memory in the code."""
    narrow_loads: int
    """Other loads from global memory."""


def compile_ahead(launch: Launch, chip: int) -> Compiled:
    """Compile what `launch` would start, for `chip`. Raises what triton raises if that cannot be done."""
    signature, constants, hints = _specialise(launch)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=hints)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    return _read(kernel.asm["ptx"], kernel.metadata.shared, chip)


def _specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list[list[Any]]]]:
    """Types, constants and hints, as triton derives them from arguments at run time."""
    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    hints: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, name in enumerate(launch.kernel.arg_names):
        if name in launch.constants:
            signature[name] = "constexpr"
            continue
        value = launch.arguments[name]
        if value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + _NAMES[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value != 1 and value % 16 == 0):
            hints[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, hints


def _read(ptx: str, shared_bytes: int, chip: int) -> Compiled:
    """Assemble once more, for the assembler's own account of registers and spills."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        suffix = "a" if chip >= 90 else ""
        command = [get_ptxas(chip).path, "-v", f"--gpu-name=sm_{chip}{suffix}", str(source), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.findall(r"(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", ptx)
    wide = len(re.findall(_WIDE, ptx))
    every = len(re.findall(r"cp\.async\.c[ga]\.shared\.global|ld\.global", ptx))
    return Compiled(
        registers=int(re.findall(r"Used (\d+) registers", said)[-1]),
        spilled_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        stack_bytes=max(map(int, re.findall(r"(\d+) bytes stack frame", said)), default=0),
        shared_bytes=shared_bytes,
        tensor_core=found[0] if found else "",
        wide_loads=wide,
        narrow_loads=every - wide,
    )


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor with a shape, a dtype and no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


Table = Mapping[str, Launch]
