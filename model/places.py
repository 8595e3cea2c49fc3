"""Where each tensor of a checkpoint goes: fused matrices are allocated once and filled as tensors arrive, in any order.

Nothing is held twice: a tensor is copied into its place, in the engine's dtype and on its device, and let go.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ..engine.core.errors import ModelLoadError
from .spec import ModelSpec

_HARMLESS = re.compile(r"(rotary_emb\.(inv_freq|cos_cached|sin_cached)|^rope_freqs\.weight)$")
"""Tensors that old checkpoints carry and that follow from the config."""


class TensorPlaces:
    """Declare the places with `place`, then `fill` them once."""

    def __init__(self, *, dtype: torch.dtype, device: torch.device | str) -> None:
        self._dtype = dtype
        self._device = device
        self._places: dict[str, Tensor] = {}
        self._then: list[tuple[set[str], Tensor, Callable[[Tensor], None]]] = []

    def place(self, parts: Mapping[str, tuple[int, ...]], *, then: Callable[[Tensor], None] | None = None) -> Tensor:
        """A tensor for named parts of these shapes, one below the other; they differ in the first dimension alone.

        `then` is called with it as soon as all its parts have come, and it is let go here.
        """
        shapes = list(parts.values())
        rows = sum(shape[0] for shape in shapes)
        whole = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts.items():
            self._places[name] = whole[start : start + shape[0]]
            start += shape[0]
        if then is not None:
            self._then.append((set(parts), whole, then))
        return whole

    def fill(self, weights: Iterable[tuple[str, Tensor]], *, ignore: frozenset[str] = frozenset()) -> None:
        """Copy every tensor into its place.

        Raises `ModelLoadError` naming a tensor that has the wrong shape (with both), one that comes twice, those that
        are missing and those that the model has no place for.
        """
        missing, unexpected = dict.fromkeys(self._places), []
        for name, tensor in weights:
            if name in ignore or _HARMLESS.search(name):
                continue
            place = self._places.get(name)
            if place is None:
                unexpected.append(name)
                continue
            if place.shape != tensor.shape:
                raise ModelLoadError(
                    f"The tensor {name} has the shape {list(tensor.shape)}; the config asks for {list(place.shape)}."
                )
            if name not in missing:
                raise ModelLoadError(f"The tensor {name} comes twice.")
            place.copy_(tensor)
            del missing[name]
            self._hand_over(name)
        if missing:
            raise ModelLoadError(f"The checkpoint lacks {_some(list(missing))}.")
        if unexpected:
            raise ModelLoadError(
                f"The checkpoint has tensors that the config leaves no place for: {_some(unexpected)}."
            )

    def _hand_over(self, name: str) -> None:
        """Where this was the last part of a tensor that is waited for, give it away and keep its shapes alone."""
        for index, (waiting, whole, then) in enumerate(self._then):
            if name in waiting:
                waiting.remove(name)
                self._places[name] = self._places[name].to("meta")
                if not waiting:
                    del self._then[index]
                    then(whole)
                return


def _some(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def layer_parts(spec: ModelSpec, layer: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The tensors of a decoder layer: our name → the checkpoint's names and shapes, in the order they are fused."""
    prefix, hidden, inner = f"model.layers.{layer}.", spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    parts: dict[str, dict[str, tuple[int, ...]]] = {
        "input_norm": {prefix + "input_layernorm.weight": (hidden,)},
        "qkv": {f"{prefix}self_attn.{name}.weight": (rows, hidden) for name, rows in qkv.items()},
        "output": {prefix + "self_attn.o_proj.weight": (hidden, queries)},
        "mlp_norm": {prefix + "post_attention_layernorm.weight": (hidden,)},
        "gate_up": {f"{prefix}mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")},
        "down": {prefix + "mlp.down_proj.weight": (hidden, inner)},
    }
    if spec.attention_bias:
        parts["qkv_bias"] = {f"{prefix}self_attn.{name}.bias": (rows,) for name, rows in qkv.items()}
    if spec.output_bias:
        parts["output_bias"] = {prefix + "self_attn.o_proj.bias": (hidden,)}
    if spec.mlp_bias:
        parts["gate_up_bias"] = {f"{prefix}mlp.{name}.bias": (inner,) for name in ("gate_proj", "up_proj")}
        parts["down_bias"] = {prefix + "mlp.down_proj.bias": (hidden,)}
    if spec.qk_norm:
        parts["q_norm"] = {prefix + "self_attn.q_norm.weight": (spec.head_dim,)}
        parts["k_norm"] = {prefix + "self_attn.k_norm.weight": (spec.head_dim,)}
    return parts
