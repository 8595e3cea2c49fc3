"""A kernel launch as a value: what a Triton kernel is started with, to be run, or compiled ahead.

Imports torch. A launcher makes a `Launch` from its tensors and runs it; `bench/gpu/kernels.py` makes the same one from
tensors without memory and compiles it for a chip that is not there. Kernels run on a GPU, and on any tensor in Triton's
interpreter (`TRITON_INTERPRET=1`, set before triton is imported); elsewhere a launcher falls back to its reference.
"""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class Launch:
    """One kernel, its grid and its arguments. Nothing has been started yet."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    """Tensors and numbers, by the names of the kernel's parameters; None is an optional tensor that is not there."""
    constants: Mapping[str, Any]
    """What the kernel is compiled for."""
    num_warps: int = 4
    num_stages: int = 2
    kept: tuple[Tensor, ...] = ()
    """Tensors that the kernel reaches by an address in an argument."""

    def run(self) -> None:
        """Start it on the current stream of its tensors' device."""
        self.kernel[self.grid](**self.arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages)


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def runs_kernels(tensor: Tensor) -> bool:
    """Whether a kernel can be started on this tensor; where not, its torch reference computes the same."""
    return tensor.device.type == "cuda" or interpreting()


@cache
def capability(device: torch.device) -> int:
    """The chip's compute capability, 80 for 8.0; 90 where there is no GPU."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def num_processors(device: torch.device) -> int:
    """How many streaming multiprocessors the chip has; 132 where there is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below `number`; 1 for 0."""
    return 1 << max(0, number - 1).bit_length()
