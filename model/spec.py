"""What a model is, as numbers: read from a Hugging Face config or a GGUF header, independent of how it is run."""

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ModelSpec:
    """The shape of a decoder of the Llama family. Sizes are counts of elements, lengths are tokens."""

    architecture: str
    """The Hugging Face class name, e.g. LlamaForCausalLM; one of those in `architectures.py`."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tied_embeddings: bool
    """The output head is the embedding matrix."""
    rope_theta: float = 10000.0
    rope_parameters: Mapping[str, Any] = attrs.field(factory=dict)
    """`rope_type` and its own fields, named as in the Hugging Face config; empty means plain rotary positions."""
    partial_rotary_factor: float = 1.0
    attention_bias: bool = False
    """q, k and v projections have a bias."""
    output_bias: bool = False
    """The o projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k before the rotation (Qwen3)."""
    sliding_window: int | None = None
    """A token sees this many tokens back, itself included; None is full attention."""
    sliding_layers: tuple[int, ...] = ()
    """The layers that `sliding_window` applies to."""
    torch_dtype: str = "bfloat16"
    """The dtype that the checkpoint names: float32, bfloat16 or float16."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
