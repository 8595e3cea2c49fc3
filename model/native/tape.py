"""Writes a model down as a tape: the list of operations that the kernels carry out once a step.

The buffers are rows of one width, one row for each token of the step. A decoder layer is nine operations:

    norm, gemm q|k|v, rope + KV, attention, convert, gemm o (added), norm, gemm gate|up (silu·mul), gemm down (added)
"""

import ctypes
import math
import weakref
from typing import Any

import numpy as np

from ..spec import ModelSpec
from .kv import NativeKV
from .library import BufferShape, Code, Epilogue, ModelShape, Op, check
from .weights import Float32Array, NativeLayer, NativeModel, Packed

HIDDEN, NORMED, QKV, MIXED, CONVERTED, INNER = range(6)
"""The buffers' numbers."""


class Tape:
    """A model bound to a cache, in the library's memory; keeps both alive."""

    def __init__(
        self, model: NativeModel, kv: NativeKV, *, attention_soft_cap: float = 0, logits_soft_cap: float = 0
    ) -> None:
        """Soft caps are 0 for none. Raises AssertionError for operations that do not fit each other."""
        self.model, self.kv = model, kv
        self.labels: list[str] = []
        """What each operation is, for a breakdown."""
        self.ops: list[Op] = []
        self._write(attention_soft_cap, logits_soft_cap)
        self.handle = create(model, kv, self.ops, buffer_shapes(model.spec))
        weakref.finalize(self, model.library.free_tape, self.handle)

    def _write(self, attention_soft_cap: float, logits_soft_cap: float) -> None:
        model, eps = self.model, self.model.spec.rms_norm_eps
        self._add("embed", Code.EMBED, target=HIDDEN, linear=model.embedding)
        self._add("angles", Code.ANGLES)
        for index, layer in enumerate(model.layers):
            self._write_layer(index, layer, attention_soft_cap)
        self._add("states", Code.STATES, HIDDEN, weight=model.norm, eps=eps)
        self._add("norm", Code.NORM, HIDDEN, NORMED, weight=model.norm, eps=eps, sampled=1)
        self._add("gemm head", Code.GEMM, NORMED, linear=model.head, sampled=1, soft_cap=logits_soft_cap)

    def _write_layer(self, index: int, layer: NativeLayer, soft_cap: float) -> None:
        spec, kv = self.model.spec, self.kv
        eps = spec.rms_norm_eps
        window = spec.sliding_window or 0 if index in spec.sliding_layers else 0
        place: dict[str, Any] = {"tensor": kv.layer_tensors[index], "group": kv.layer_groups[index]}
        add = self._add
        add("norm", Code.NORM, HIDDEN, NORMED, weight=layer.input_norm, eps=eps)
        add("gemm qkv", Code.GEMM, NORMED, QKV, linear=layer.qkv)
        add("rope+kv", Code.ROPE_KV, QKV, weight=layer.q_norm, weight2=layer.k_norm, eps=eps, **place)
        add("attention", Code.ATTENTION, QKV, MIXED, window=window, soft_cap=soft_cap, **place)
        add("convert", Code.CONVERT, MIXED, CONVERTED)
        add("gemm o", Code.GEMM, CONVERTED, HIDDEN, linear=layer.output, epilogue=Epilogue.ADD)
        add("norm", Code.NORM, HIDDEN, NORMED, weight=layer.mlp_norm, eps=eps)
        add("gemm gate_up", Code.GEMM, NORMED, INNER, linear=layer.gate_up, epilogue=Epilogue.SILU_MUL)
        add("gemm down", Code.GEMM, INNER, HIDDEN, linear=layer.down, epilogue=Epilogue.ADD)

    def _add(
        self,
        label: str,
        code: Code,
        source: int = 0,
        target: int = 0,
        *,
        linear: Packed | None = None,
        weight: Float32Array | None = None,
        weight2: Float32Array | None = None,
        **fields: float,
    ) -> None:
        self.labels.append(label)
        self.ops.append(
            Op(
                code=code,
                source=source,
                target=target,
                linear=None if linear is None else linear.handle,
                weight=None if weight is None else weight.ctypes.data,
                weight2=None if weight2 is None else weight2.ctypes.data,
                **fields,
            )
        )

    def take_seconds(self) -> dict[str, float]:
        """Seconds by label since the last call, of the steps run with `profile`."""
        seconds = np.zeros(len(self.labels))
        pointer = seconds.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
        self.model.library.take_seconds(self.handle, pointer)
        totals: dict[str, float] = {}
        for label, spent in zip(self.labels, seconds.tolist(), strict=True):
            totals[label] = totals.get(label, 0.0) + spent
        return totals


def buffer_shapes(spec: ModelSpec) -> list[BufferShape]:
    """In the order of the numbers above."""
    mixed = spec.num_heads * spec.head_dim
    shapes = {
        HIDDEN: (spec.hidden_size, 0),
        NORMED: (spec.hidden_size, 1),
        QKV: (mixed + 2 * spec.num_kv_heads * spec.head_dim, 0),
        MIXED: (mixed, 0),
        CONVERTED: (mixed, 1),
        INNER: (spec.intermediate_size, 1),
    }
    return [BufferShape(width=width, activations=activations) for width, activations in shapes.values()]


def create(model: NativeModel, kv: NativeKV, ops: list[Op], buffers: list[BufferShape]) -> ctypes.c_void_p:
    """The tape in the library's memory, checked. Raises AssertionError."""
    spec = model.spec
    shape = ModelShape(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rotary_dim=2 * len(model.frequencies),
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        format=model.activations,
        num_groups=kv.num_groups,
        attention_scale=1 / math.sqrt(spec.head_dim),
        rotary_scaling=model.rotary_scaling,
        frequencies=model.frequencies.ctypes.data,
    )
    handle = ctypes.c_void_p()
    check(
        model.library.new_tape(
            ctypes.byref(handle),
            ctypes.byref(shape),
            (Op * len(ops))(*ops),
            len(ops),
            (BufferShape * len(buffers))(*buffers),
            len(buffers),
            kv.handle,
        )
    )
    return handle
