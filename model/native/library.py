"""The compiled kernels as Python sees them: structs of the same layout, functions with their types.

Imports ctypes alone. Every call releases the GIL. A function that refuses answers a sentence; `check` raises it.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any

from .build import NativeUnavailable, build_library


class Format(IntEnum):
    """How numbers are kept: of matrices, of activations, of the cache."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


class Code(IntEnum):
    """Operations; see tape.h."""

    EMBED = 0
    ANGLES = 1
    NORM = 2
    ROPE_KV = 3
    ATTENTION = 4
    CONVERT = 5
    GEMM = 6
    STATES = 7


class Epilogue(IntEnum):
    """What becomes of a product; see gemm.h."""

    STORE = 0
    ADD = 1
    SILU_MUL = 2


class Op(ctypes.Structure):
    """`Op` of tape.h."""

    _fields_ = (
        ("code", c_int32),
        ("source", c_int32),
        ("target", c_int32),
        ("sampled", c_int32),
        ("epilogue", c_int32),
        ("tensor", c_int32),
        ("group", c_int32),
        ("window", c_int32),
        ("eps", c_float),
        ("soft_cap", c_float),
        ("linear", c_void_p),
        ("weight", c_void_p),
        ("weight2", c_void_p),
    )


class BufferShape(ctypes.Structure):
    """`BufferShape` of tape.h."""

    _fields_ = (("width", c_int32), ("activations", c_int32))


class ModelShape(ctypes.Structure):
    """`ModelShape` of tape.h."""

    _fields_ = (
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("hidden_size", c_int32),
        ("vocab_size", c_int32),
        ("format", c_int32),
        ("num_groups", c_int32),
        ("attention_scale", c_float),
        ("rotary_scaling", c_float),
        ("frequencies", c_void_p),
    )


class Step(ctypes.Structure):
    """`Step` of tape.h."""

    _fields_ = (
        ("num_tokens", c_int32),
        ("num_sequences", c_int32),
        ("num_sampled", c_int32),
        ("num_pooled", c_int32),
        ("table_width", c_int32),
        ("threads", c_int32),
        ("profile", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_lengths", c_void_p),
        ("context_lengths", c_void_p),
        ("sampled", c_void_p),
        ("pooled", c_void_p),
        ("tables", c_void_p),
        ("slots", c_void_p),
        ("logits", c_void_p),
        ("best", c_void_p),
        ("best_logits", c_void_p),
        ("states", c_void_p),
    )


class Sampling(ctypes.Structure):
    """`Sampling` of sampling.h."""

    _fields_ = (
        ("num_rows", c_int32),
        ("width", c_int32),
        ("stride", c_int32),
        ("threads", c_int32),
        ("logits", c_void_p),
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("uniform", c_void_p),
        ("best", c_void_p),
        ("best_logits", c_void_p),
        ("tokens", c_void_p),
        ("usable", c_void_p),
    )


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "size_of": (c_int, (c_int,)),
    "kernels": (c_char_p, ()),
    "is_fast": (c_int, (c_int,)),
    "resize_pool": (None, (c_int,)),
    "pack": (c_char_p, (POINTER(c_void_p), c_int, c_int, c_int, c_int, c_void_p, c_void_p, c_void_p)),
    "linear_bytes": (c_int64, (c_void_p,)),
    "unpack": (None, (c_void_p, c_void_p)),
    "free_linear": (None, (c_void_p,)),
    "new_cache": (c_char_p, (POINTER(c_void_p), c_int, c_int, c_int, c_int, c_int, c_int)),
    "cache_bytes": (c_int64, (c_void_p,)),
    "cache_data": (c_void_p, (c_void_p,)),
    "block_bytes": (c_int64, (c_void_p,)),
    "free_cache": (None, (c_void_p,)),
    "start_prefault": (c_char_p, (POINTER(c_void_p), c_void_p, c_int64)),
    "wait_prefault": (c_int64, (c_void_p,)),
    "end_prefault": (None, (c_void_p,)),
    "copy_blocks": (c_char_p, (c_void_p, c_void_p, c_void_p, c_int)),
    "attend": (
        c_char_p,
        (c_void_p, c_int, c_int, c_float, c_int, c_int, *[c_void_p] * 3, c_int, *[c_void_p] * 5, c_int),
    ),
    "new_tape": (
        c_char_p,
        (POINTER(c_void_p), POINTER(ModelShape), POINTER(Op), c_int, POINTER(BufferShape), c_int, c_void_p),
    ),
    "sample": (c_char_p, (POINTER(Sampling),)),
    "penalise": (c_char_p, (c_void_p, c_int64, c_int, c_int, c_int, *[c_void_p] * 5)),
    "largest": (c_char_p, (c_void_p, c_int64, c_int, c_int, c_int, c_void_p, c_void_p, c_int)),
    "free_tape": (None, (c_void_p,)),
    "run": (c_char_p, (c_void_p, POINTER(Step))),
    "take_seconds": (None, (c_void_p, POINTER(c_double))),
}
"""The functions of api.cpp without their prefix: result, arguments."""


class Library:
    """The functions of api.cpp, as attributes without their prefix `triolet_`."""

    def __init__(self, path: Path) -> None:
        """Raises NativeUnavailable for a file that cannot be loaded or is of another layout."""
        try:
            loaded = ctypes.CDLL(str(path))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(loaded, f"triolet_{name}")
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise NativeUnavailable(f"the compiled kernels cannot be loaded: {error}") from None
        for which, struct in enumerate((Op, BufferShape, ModelShape, Step, Sampling)):
            if self.size_of(which) != ctypes.sizeof(struct):
                raise NativeUnavailable(f"the compiled kernels have another layout of {struct.__name__}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)  # here for the type checker: the names are those of _FUNCTIONS

    @property
    def description(self) -> str:
        """What the kernels were built for, for the log."""
        kernels: bytes = self.kernels()
        return kernels.decode()


def check(answer: bytes | None, error: type[Exception] = AssertionError) -> None:
    """Raise what a function answers, unless it answers nothing."""
    if answer is not None:
        raise error(answer.decode())


_loaded: dict[Path, Library] = {}


def load_library(progress: Callable[[str, int, int | None], None] | None = None) -> Library:
    """The kernels, compiled if need be; the same object while they stay the same. Raises NativeUnavailable."""
    path = build_library(progress=progress)
    if path not in _loaded:
        _loaded[path] = Library(path)
    return _loaded[path]
