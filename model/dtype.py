"""Which dtype weights and KV cache get: what the user names, or with `auto` what the model and the machine suggest."""

from collections.abc import Callable

import torch

from ..engine.core.errors import ConfigurationError, ModelLoadError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bfloat16_is_fast(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware; where it does not, every product is widened first."""
    if device.type == "cpu":
        known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        return any(bool(known.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16", "sve_bf16"))
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return True


def resolve_dtype(
    requested: str,
    checkpoint: str,
    device: torch.device | str = "cpu",
    *,
    has_bfloat16: Callable[[torch.device], bool] = bfloat16_is_fast,
) -> torch.dtype:
    """The dtype for `--dtype requested` and a checkpoint that names `checkpoint`.

    `auto` keeps the checkpoint's, with two exceptions: without bfloat16 in hardware a CPU takes float32 and a GPU
    float16; and a CPU takes bfloat16 (or float32) for float16, whose products CPUs do slowly.
    Raises `ConfigurationError` for an unknown `requested`, `ModelLoadError` for an unknown checkpoint dtype.
    """
    if requested != "auto":
        if requested not in DTYPES:
            raise ConfigurationError(f"--dtype must be auto, {', '.join(DTYPES)}, not {requested!r}.")
        return DTYPES[requested]
    if checkpoint not in DTYPES:
        raise ModelLoadError(f"The model's torch_dtype {checkpoint!r} is not one of {', '.join(DTYPES)}; set --dtype.")
    device = torch.device(device)
    dtype = DTYPES[checkpoint]
    if device.type == "cpu" and dtype is torch.float16:
        dtype = torch.bfloat16
    if dtype is torch.bfloat16 and not has_bfloat16(device):
        return torch.float32 if device.type == "cpu" else torch.float16
    return dtype
