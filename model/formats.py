"""What a GPU keeps numbers as: from flags, machine and model to `GpuFormats`, or an error that says what to do.

Imports torch. The formats of the native CPU kernels are chosen in `native/choose.py`.
"""

from collections.abc import Callable
from functools import partial

import attrs
import torch

from ..engine.core.errors import ConfigurationError
from .layers.fp8 import Fp8Linear
from .layers.linear import AnyLinear
from .layers.torchao_linear import check_torchao, quantized_linear

FP8_CAPABILITY = (9, 0)
"""From here on a GPU multiplies fp8 with a scale for each row and each column (Hopper)."""


@attrs.frozen(kw_only=True)
class GpuFormats:
    """The names are those of `--quantization`; `none` is the model's dtype."""

    weights: str
    kv: torch.dtype


def resolve_gpu_formats(
    *,
    quantization: str,
    kv_cache_dtype: str,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    capability: Callable[[torch.device], tuple[int, int]] = torch.cuda.get_device_capability,
) -> GpuFormats:
    """The formats for a model that torch runs on `device` with the attention backend of that name.

    Raises `ConfigurationError` for what the device, the dtype or the backend cannot do.
    """
    if quantization == "fp8":
        _check_fp8_weights(dtype, device, capability)
    elif quantization != "none":
        if dtype is not torch.bfloat16:
            raise ConfigurationError(f"--quantization {quantization} computes in bfloat16; set --dtype bfloat16.")
        check_torchao(quantization)
    if kv_cache_dtype == "auto":
        return GpuFormats(weights=quantization, kv=dtype)
    if kv_cache_dtype != "fp8":
        raise ConfigurationError(
            f"--kv-cache-dtype {kv_cache_dtype} needs the native CPU kernels, but the model runs on {device.type}; "
            f"a GPU has fp8."
        )
    if backend != "triton":
        raise ConfigurationError(
            f"--kv-cache-dtype fp8 needs --attention-backend triton, on an NVIDIA GPU; here {backend} attends, on "
            f"{device.type}."
        )
    return GpuFormats(weights=quantization, kv=torch.float8_e4m3fn)


def quantizer(quantization: str) -> Callable[[torch.Tensor], AnyLinear] | None:
    """From a matrix to what multiplies in its place; None: the matrix itself does."""
    if quantization == "none":
        return None
    if quantization == "fp8":
        return Fp8Linear.of
    return partial(quantized_linear, bits=quantization)


def _check_fp8_weights(
    dtype: torch.dtype, device: torch.device, capability: Callable[[torch.device], tuple[int, int]]
) -> None:
    needs = "--quantization fp8 needs an NVIDIA GPU of compute capability 9.0 or later (Hopper)"
    if device.type != "cuda":
        raise ConfigurationError(f"{needs}, but the model runs on {device.type}; a CPU has int8 and int4.")
    major, minor = capability(device)
    if (major, minor) < FP8_CAPABILITY:
        raise ConfigurationError(f"{needs}; this one's is {major}.{minor}.")
    if dtype is not torch.bfloat16:
        raise ConfigurationError("--quantization fp8 computes in bfloat16; set --dtype bfloat16.")
