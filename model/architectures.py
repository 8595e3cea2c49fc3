"""The architectures that run here: how the configuration of each becomes the fields of a `ModelSpec` that differ.

Imports no torch. The table is by the Hugging Face class name; GGUF names its own architectures, listed beside. What
all of them share (sizes, rotary positions) is read by `hf_config.py` and `gguf_spec.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from ..engine.core.errors import ModelLoadError
from .fields import Fields
from .spec import ModelSpec


def _llama(fields: Fields) -> dict[str, Any]:
    bias = fields.flag("attention_bias")
    return {"attention_bias": bias, "output_bias": bias, "mlp_bias": fields.flag("mlp_bias")}


def _mistral(fields: Fields) -> dict[str, Any]:
    """Every layer has the window, when there is one."""
    if fields.raw("sliding_window") is None:
        return {}
    layers = tuple(range(fields.count("num_hidden_layers")))
    return {"sliding_window": fields.count("sliding_window"), "sliding_layers": layers}


def _qwen2(fields: Fields) -> dict[str, Any]:
    return {"attention_bias": True, **_qwen_window(fields)}


def _qwen3(fields: Fields) -> dict[str, Any]:
    bias = fields.flag("attention_bias")
    return {"attention_bias": bias, "output_bias": bias, "qk_norm": True, **_qwen_window(fields)}


def _qwen_window(fields: Fields) -> dict[str, Any]:
    """The window counts only with `use_sliding_window`: for the layers listed, or from `max_window_layers` on."""
    if not fields.flag("use_sliding_window") or fields.raw("sliding_window") is None:
        return {}
    num_layers = fields.count("num_hidden_layers")
    kinds = fields.raw("layer_types")
    if kinds is None:
        first = fields.raw("max_window_layers")
        if not isinstance(first, int | None):
            raise fields.fail("max_window_layers", f"must be a whole number, not {first!r}")
        layers = tuple(range(28 if first is None else first, num_layers))
    elif isinstance(kinds, list) and len(kinds) == num_layers:
        layers = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        raise fields.fail("layer_types", f"must list {num_layers} layers")
    return {"sliding_window": fields.count("sliding_window"), "sliding_layers": layers} if layers else {}


ARCHITECTURES: Final[Mapping[str, Callable[[Fields], dict[str, Any]]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}

GGUF_ARCHITECTURES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",  # Mistral's files say llama too
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

DEFAULT_HEAD_DIM: Final[Mapping[str, int]] = {"Qwen3ForCausalLM": 128}
"""Head sizes that an absent `head_dim` means; for the others it is hidden_size / num_attention_heads."""

ROPE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "proportional": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""The kinds of rotary scaling, with the fields each must have."""


def check_spec(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec, without end tokens outside its vocabulary; or a ModelLoadError that names what does not fit."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(
            f"{fields.file}: {spec.num_heads} attention heads cannot share {spec.num_kv_heads} key-value heads evenly."
        )
    if spec.head_dim % 2:
        raise ModelLoadError(f"{fields.file}: a head size of {spec.head_dim} is odd; rotary positions need pairs.")
    if not 0 < spec.partial_rotary_factor <= 1:
        raise ModelLoadError(
            f"{fields.file}: partial_rotary_factor is {spec.partial_rotary_factor}, not above 0 and at most 1."
        )
    # Some files name an end token that the model cannot say; that harms nobody.
    return attrs.evolve(spec, eos_token_ids=tuple(i for i in spec.eos_token_ids if i < spec.vocab_size))
