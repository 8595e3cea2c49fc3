"""Whether the native kernels run a model, and in which formats: from flags, machine and model to a `NativeChoice`.

Without being asked for, they are taken where they are known to be the fastest: on a CPU with AVX-512 for the format.
What was asked for and cannot be had raises `ConfigurationError` with the reason; what was not asked for is one line in
the log.
"""

import logging
from collections.abc import Callable

import attrs
import torch

from ...engine.core.errors import ConfigurationError
from ..spec import ModelSpec
from .build import NativeUnavailable
from .kv import why_unfit_block
from .library import Format, Library, load_library
from .weights import why_unfit

log = logging.getLogger(__name__)

NAME = "native"
"""What `--attention-backend` calls it."""
_FORMATS = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16}


@attrs.frozen(kw_only=True)
class NativeChoice:
    """The kernels, and what they keep numbers as."""

    library: Library
    weights: Format
    kv: Format


def choose_native(
    spec: ModelSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    block_size: int,
    backend: str | None = None,
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
    progress: Callable[[str, int, int | None], None] | None = None,
    load: Callable[..., Library] = load_library,
) -> NativeChoice | None:
    """The kernels for this model, or None where torch is to run it. May compile them, which takes some seconds once.

    Raises ConfigurationError where a flag asks for the kernels and they cannot be had.
    """
    asked = _asked(backend, quantization, kv_cache_dtype)
    if backend not in (None, NAME) and asked is None:
        return None
    try:
        if backend not in (None, NAME):
            raise NativeUnavailable(f"--attention-backend is {backend}")
        return _choose(spec, device, dtype, block_size, quantization, kv_cache_dtype, progress, load, asked is not None)
    except NativeUnavailable as unavailable:
        if asked is not None:
            raise ConfigurationError(f"{asked} needs the native CPU kernels, but {unavailable}.") from None
        if device.type == "cpu":
            log.info("torch computes the steps; the native kernels, which are faster, are not used: %s", unavailable)
        return None


def _asked(backend: str | None, quantization: str, kv_cache_dtype: str) -> str | None:
    """The flag that needs the kernels, if one does."""
    if quantization != "none":
        return f"--quantization {quantization}"
    if kv_cache_dtype != "auto":
        return f"--kv-cache-dtype {kv_cache_dtype}"
    return f"--attention-backend {NAME}" if backend == NAME else None


def _choose(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    block_size: int,
    quantization: str,
    kv_cache_dtype: str,
    progress: Callable[[str, int, int | None], None] | None,
    load: Callable[..., Library],
    asked: bool,
) -> NativeChoice:
    if device.type != "cpu":
        raise NativeUnavailable(f"the model runs on {device.type}")
    for reason in (why_unfit(spec), why_unfit_block(block_size)):
        if reason is not None:
            raise NativeUnavailable(reason)
    plain = _FORMATS.get(dtype)
    if plain is None:
        raise NativeUnavailable(f"they do not compute in {_name(dtype)}; set --dtype bfloat16")
    weights = plain if quantization == "none" else Format[quantization.upper()]
    kv = plain if kv_cache_dtype == "auto" else Format[kv_cache_dtype.upper()]
    if plain is Format.FLOAT32 and (weights, kv) != (plain, plain):
        raise NativeUnavailable("with quantization they compute in bfloat16; set --dtype bfloat16")
    library = load(progress)
    if not asked and not library.is_fast(weights):
        raise NativeUnavailable(f"as {library.description} they are not known to be faster in {_name(dtype)}")
    return NativeChoice(library=library, weights=weights, kv=kv)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
