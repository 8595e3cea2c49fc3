"""Matrices of eight or four bits on a GPU, weights alone, by torchao: activations stay in bfloat16.

Imports torch, and torchao on use: it is no dependency, and what is missing without it is said by `check_torchao`.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from ...engine.core.errors import ConfigurationError
from .linear import Linear

GROUP = 128
"""Inputs that share a scale in four bits, where they divide the matrix; else 32."""


def check_torchao(quantization: str) -> None:
    """Raises `ConfigurationError` where torchao is not there."""
    if find_spec("torchao") is None:
        raise ConfigurationError(
            f"--quantization {quantization} on a GPU needs torchao, which is not installed: pip install torchao"
        )


def quantized_linear(weight: Tensor, bits: str) -> Linear:
    """A matrix `[outputs, inputs]` in bfloat16 as `int8` (a scale for each output) or `int4` (in groups)."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    if bits == "int8":
        config = Int8WeightOnlyConfig()
    else:
        group = GROUP if weight.shape[1] % GROUP == 0 else 32
        config = Int4WeightOnlyConfig(group_size=group, int4_packing_format="tile_packed_to_4d")
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta", dtype=weight.dtype)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    # It replaces the weights of a module's children.
    quantize_(torch.nn.Sequential(linear), config)
    return Linear(weight=linear.weight)
