"""Attention backends by name. A backend's module is imported when it is chosen, so that what it needs may be absent."""

from collections.abc import Callable

from ...engine.core.errors import ConfigurationError
from .interface import AttentionBackend


def _torch() -> type[AttentionBackend]:
    from .torch_backend import TorchAttention

    return TorchAttention


def _triton() -> type[AttentionBackend]:
    from .triton.backend import TritonAttention

    return TritonAttention


def _flash_attn() -> type[AttentionBackend]:
    from .flash_attn_backend import FlashAttention

    return FlashAttention


def _flashinfer() -> type[AttentionBackend]:
    from .flashinfer_backend import FlashInfer

    return FlashInfer


_BACKENDS: dict[str, Callable[[], type[AttentionBackend]]] = {
    "torch": _torch,
    "triton": _triton,
    "flash_attn": _flash_attn,
    "flashinfer": _flashinfer,
}
"""Name → import of the class."""
_WHOLE_STEP = ("native",)
"""Names that run whole steps, not the attention of a torch model; see model/native/choose.py."""
_PREFERRED: dict[str, tuple[str, ...]] = {"cuda": ("triton",)}
"""Device type → names to try, best first; `torch` is behind them all and runs anywhere."""


def register_backend(
    name: str, load: Callable[[], type[AttentionBackend]], *, preferred_on: tuple[str, ...] = ()
) -> None:
    """Add a backend under a new name; `preferred_on` names device types where it is tried before the others."""
    if name in _BACKENDS:
        raise ValueError(f"there is an attention backend {name!r} already")
    _BACKENDS[name] = load
    for device_type in preferred_on:
        _PREFERRED[device_type] = (name, *_PREFERRED.get(device_type, ()))


def backend_names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(sorted((*_BACKENDS, *_WHOLE_STEP)))


def choose_backend(name: str | None, device_type: str) -> type[AttentionBackend]:
    """The backend of that name, or without a name the best that this kind of device can run.

    Raises `ConfigurationError` for an unknown name, listing the valid ones, and for one that cannot run here.
    """
    if name is None:
        for candidate in _PREFERRED.get(device_type, ()):
            if (backend := _BACKENDS[candidate]()).unusable(device_type) is None:
                return backend
        return _torch()
    if name in _WHOLE_STEP:
        raise ConfigurationError(f"--attention-backend {name} cannot be used here: it needs its own model and cache.")
    if name not in _BACKENDS:
        raise ConfigurationError(
            f"--attention-backend {name!r} is not known; valid names are {', '.join(backend_names())}."
        )
    backend = _BACKENDS[name]()
    if (reason := backend.unusable(device_type)) is not None:
        raise ConfigurationError(f"--attention-backend {name} cannot be used here: {reason}.")
    return backend
