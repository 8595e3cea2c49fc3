"""A model's weights, packed for the kernels as they are read: no matrix is held twice for longer than its own packing.

Matrices become `Packed` objects in the library's memory; norms stay small float32 arrays here.
"""

import ctypes
import weakref
from collections.abc import Iterable
from functools import partial

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..layers.rotary import rope_frequencies
from ..places import TensorPlaces, layer_parts
from ..spec import ModelSpec
from .build import NativeUnavailable
from .library import Format, Library, check

PANEL = 64
"""Widths are padded to this many values, with zeros."""

Float32Array = npt.NDArray[np.float32]


def padded(width: int) -> int:
    return -(-width // PANEL) * PANEL


class Packed:
    """A matrix in the library's memory, freed with this object."""

    def __init__(
        self, library: Library, format: Format, weight: Tensor, bias: Tensor | None = None, *, paired: bool = False
    ) -> None:
        """`weight` `[outputs, inputs]` in float32 or bfloat16; `paired`: gate above up."""
        outputs, inputs = weight.shape
        weight = weight.contiguous()
        floats = weight.data_ptr() if weight.dtype is torch.float32 else None
        halves = weight.data_ptr() if weight.dtype is torch.bfloat16 else None
        bias = None if bias is None else bias.float().contiguous()
        biases = None if bias is None else bias.data_ptr()
        handle = ctypes.c_void_p()
        answer = library.pack(ctypes.byref(handle), format, paired, outputs, inputs, floats, halves, biases)
        check(answer, ValueError)
        self.handle = handle
        self.num_bytes: int = library.linear_bytes(handle)
        self.shape = (outputs, inputs)
        self._library = library
        weakref.finalize(self, library.free_linear, handle)

    def unpacked(self) -> Tensor:
        """The weights as the kernels see them, float32 `[outputs, inputs]`; of an int4 matrix its four bits."""
        weight = torch.empty(self.shape)
        self._library.unpack(self.handle, weight.data_ptr())
        return weight


@attrs.frozen(kw_only=True, eq=False)
class NativeLayer:
    """A decoder layer's weights."""

    input_norm: Float32Array
    qkv: Packed
    q_norm: Float32Array | None
    k_norm: Float32Array | None
    output: Packed
    mlp_norm: Float32Array
    gate_up: Packed
    down: Packed


@attrs.frozen(kw_only=True, eq=False)
class NativeModel:
    """Packed weights, to be bound to a KV cache by `NativeForward`."""

    library: Library
    spec: ModelSpec
    format: Format
    """Of the matrices."""
    embedding: Packed
    layers: tuple[NativeLayer, ...]
    norm: Float32Array
    head: Packed
    """The embedding itself where they are tied and of one format."""
    frequencies: Float32Array
    rotary_scaling: float

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def num_bytes(self) -> int:
        """What the matrices take."""
        distinct = {id(matrix): matrix for matrix in (self.embedding, self.head)}
        for layer in self.layers:
            distinct.update((id(matrix), matrix) for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down))
        return sum(matrix.num_bytes for matrix in distinct.values())

    @property
    def activations(self) -> Format:
        """What the matrices are multiplied with."""
        return Format.INT8 if self.format is Format.INT4 else self.format


def why_unfit(spec: ModelSpec) -> str | None:
    """Why the kernels cannot run such a model, or None if they can."""
    if spec.head_dim % 16:
        return f"its head size {spec.head_dim} is not a multiple of 16"
    return None


def pack_model(
    library: Library,
    spec: ModelSpec,
    weights: Iterable[tuple[str, Tensor]],
    *,
    format: Format,
    max_model_len: int | None = None,
) -> NativeModel:
    """Read and pack the weights: tensors under their Hugging Face names, in any order.

    Raises `ModelLoadError` as `build_model` does, and NativeUnavailable for a model that the kernels cannot run.
    """
    if (reason := why_unfit(spec)) is not None:
        raise NativeUnavailable(reason)
    frequencies, scaling = rope_frequencies(spec, max_model_len=max_model_len)
    packer = _Packer(library, spec, format)
    packer.read(weights)
    return NativeModel(
        library=library,
        spec=spec,
        format=format,
        embedding=packer.matrices["embedding"],
        layers=tuple(packer.layer(index) for index in range(spec.num_layers)),
        norm=packer.vectors["norm"],
        head=packer.matrices["head"],
        frequencies=frequencies.numpy(),
        rotary_scaling=scaling,
    )


class _Packer:
    """Takes fused tensors as they get complete."""

    def __init__(self, library: Library, spec: ModelSpec, format: Format) -> None:
        self._library = library
        self._spec = spec
        self._format = format
        # Quantized from what the checkpoint holds, not from its rounding to bfloat16.
        self._dtype = torch.bfloat16 if format is Format.BFLOAT16 else torch.float32
        self._table_format = Format.FLOAT32 if format is Format.FLOAT32 else Format.BFLOAT16
        self._parts = layer_parts(spec, 0).keys()
        self._waiting: dict[str, Tensor] = {}
        """Matrices whose bias has not come, and biases whose matrix has not."""
        self.matrices: dict[str, Packed] = {}
        self.vectors: dict[str, Float32Array] = {}

    def read(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        spec = self._spec
        places = TensorPlaces(dtype=self._dtype, device="cpu")
        table = {"model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size)}
        places.place(table, then=self._take_table)
        for index in range(spec.num_layers):
            for name, parts in layer_parts(spec, index).items():
                places.place(parts, then=partial(self._take, f"{index}.{name}"))
        places.place({"model.norm.weight": (spec.hidden_size,)}, then=partial(self._take_vector, "norm"))
        ignored: frozenset[str] = frozenset()
        if spec.tied_embeddings:
            ignored = frozenset({"lm_head.weight"})  # a tied model's checkpoint may name the same matrix twice
        else:
            head = {"lm_head.weight": (spec.vocab_size, spec.hidden_size)}
            places.place(head, then=lambda tensor: self._pack("head", tensor))
        places.fill(weights, ignore=ignored)

    def layer(self, index: int) -> NativeLayer:
        vectors, matrices = self.vectors, self.matrices
        return NativeLayer(
            input_norm=vectors[f"{index}.input_norm"],
            qkv=matrices[f"{index}.qkv"],
            q_norm=vectors.get(f"{index}.q_norm"),
            k_norm=vectors.get(f"{index}.k_norm"),
            output=matrices[f"{index}.output"],
            mlp_norm=vectors[f"{index}.mlp_norm"],
            gate_up=matrices[f"{index}.gate_up"],
            down=matrices[f"{index}.down"],
        )

    def _take_table(self, tensor: Tensor) -> None:
        self.matrices["embedding"] = Packed(self._library, self._table_format, tensor)
        if self._spec.tied_embeddings:
            if self._format is self._table_format:
                self.matrices["head"] = self.matrices["embedding"]
            else:
                self._pack("head", tensor)

    def _take(self, name: str, tensor: Tensor) -> None:
        if name.endswith("_norm"):
            self._take_vector(name, tensor)
            return
        matrix = name.removesuffix("_bias")
        biased = f"{matrix.partition('.')[2]}_bias" in self._parts
        self._waiting[name] = tensor
        if matrix in self._waiting and (not biased or f"{matrix}_bias" in self._waiting):
            weight, bias = self._waiting.pop(matrix), self._waiting.pop(f"{matrix}_bias", None)
            self._pack(matrix, weight, bias)

    def _take_vector(self, name: str, tensor: Tensor) -> None:
        vector = np.zeros(padded(tensor.numel()), np.float32)
        vector[: tensor.numel()] = tensor.float().numpy()
        self.vectors[name] = vector

    def _pack(self, name: str, weight: Tensor, bias: Tensor | None = None) -> None:
        paired = name.endswith("gate_up")
        # The head decides between tokens: four bits are too few for it.
        format = Format.INT8 if name == "head" and self._format is Format.INT4 else self._format
        self.matrices[name] = Packed(self._library, format, weight, bias, paired=paired)
