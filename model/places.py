"""Where each tensor of a checkpoint goes: fused matrices are allocated once and filled as tensors arrive, in any order.

Nothing is held twice: a tensor is copied into its place, in the engine's dtype and on its device, and let go.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import attrs
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
        self._waiting: list[_Waiting] = []

    def place(self, parts: Mapping[str, tuple[int, ...]], *, then: Callable[[Tensor], None] | None = None) -> Tensor:
        """A tensor for named parts of these shapes, one below the other; they differ in the first dimension alone.

        `then` is called with it as soon as all its parts have come, and it is let go here. Such a tensor takes memory
        from its first part on; what is returned for it has the shape alone.
        """
        shapes = list(parts.values())
        rows = sum(shape[0] for shape in shapes)
        device = self._device if then is None else "meta"
        whole = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=device)
        self._lay(parts, whole)
        if then is not None:
            self._waiting.append(_Waiting(parts=parts, missing=set(parts), whole=whole, then=then))
        return whole

    def _lay(self, parts: Mapping[str, tuple[int, ...]], whole: Tensor) -> None:
        start = 0
        for name, shape in parts.items():
            self._places[name] = whole[start : start + shape[0]]
            start += shape[0]

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
            waiting = self._wait_for(name)
            self._places[name].copy_(tensor)
            del missing[name]
            if waiting is not None:
                self._hand_over(waiting, name)
        if missing:
            raise ModelLoadError(f"The checkpoint lacks {_some(list(missing))}.")
        if unexpected:
            raise ModelLoadError(
                f"The checkpoint has tensors that the config leaves no place for: {_some(unexpected)}."
            )

    def _wait_for(self, name: str) -> "_Waiting | None":
        """The tensor that is handed over and of which this is a part; its memory is there."""
        for waiting in self._waiting:
            if name in waiting.missing:
                if waiting.whole.is_meta:
                    waiting.whole = torch.empty_like(waiting.whole, device=self._device)
                    self._lay(waiting.parts, waiting.whole)
                return waiting
        return None

    def _hand_over(self, waiting: "_Waiting", name: str) -> None:
        """Where this was the last part, give the tensor away and keep its shapes alone."""
        waiting.missing.remove(name)
        if not waiting.missing:
            self._waiting.remove(waiting)
            self._lay(waiting.parts, waiting.whole.to("meta"))
            waiting.then(waiting.whole)


@attrs.define(kw_only=True, eq=False)
class _Waiting:
    """A tensor that is given away when all its parts have come."""

    parts: Mapping[str, tuple[int, ...]]
    missing: set[str]
    whole: Tensor
    then: Callable[[Tensor], None]


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
