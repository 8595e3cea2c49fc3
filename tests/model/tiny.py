"""Tiny random models on disk, in every format that is read: made by transformers and by gguf's own writer."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 272
"""256 bytes, a few merges and the special tokens, padded."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGES = [("h", "e"), ("Ġ", "t"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġt", "he"), ("a", "n"), ("an", "d")]


def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE with a few merges and the special tokens."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in _MERGES)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, _MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, **settings: Any) -> None:
    """tokenizer.json and its settings, as transformers saves them."""
    named = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "chat_template": CHAT_TEMPLATE, **settings}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer or byte_tokenizer(), **named).save_pretrained(folder)


def make_model(kind: str = "llama", *, seed: int = 0, **config: Any) -> PreTrainedModel:
    """A random model, in float32, of weights large enough that its choices are far apart."""
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    config_class, model_class = CLASSES[kind]
    torch.manual_seed(seed)
    return model_class(config_class(**{**shape, **config})).eval()


def write_folder(
    folder: Path, model: PreTrainedModel | None = None, *, tokenizer: bool = True, shard: str = "1GB", **edits: Any
) -> PreTrainedModel:
    """The model in Hugging Face layout; `edits` are written over config.json (None takes a field out)."""
    model = model or make_model()
    model.save_pretrained(folder, max_shard_size=shard)
    if tokenizer:
        write_tokenizer(folder)
    if edits:
        edit_config(folder, **edits)
    return model


def edit_config(folder: Path, **edits: Any) -> None:
    """Write fields over config.json; None takes one out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **edits}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def permute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Hugging Face's order of the rotated rows into ggml's, as llama.cpp's converter does."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    model: PreTrainedModel | None = None,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tokenizer: bool = True,
    extra: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    architecture: str | None = None,
    leave_out: str | None = None,
    add_bos: bool | None = None,
) -> PreTrainedModel:
    """The model as a GGUF file, its matrices of `kind`, its norms float32."""
    model = model or make_model()
    config = model.config
    architecture = architecture or {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for key, value in (extra or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](key, value)
    if tokenizer:
        _add_tokenizer(writer)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tied = config.tie_word_embeddings
    tensors = {name: t for name, t in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    for name, tensor in tensors.items():
        theirs, array = gguf_name(name), tensor.float().numpy()
        part = theirs.split(".")[-2]
        if architecture == "llama" and part in heads:
            array = permute(array, heads[part])
        stored = kind if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        if theirs != leave_out:
            writer.add_tensor(theirs, gguf.quants.quantize(array, stored), raw_dtype=stored)
    for theirs, array in (extra_tensors or {}).items():
        writer.add_tensor(theirs, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = byte_tokenizer()
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    padding = [f"[PAD{i}]" for i in range(len(words), VOCAB_SIZE)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([word for word, _ in words] + padding)
    writer.add_token_types([3 if word in SPECIAL else 1 for word, _ in words] + [5] * len(padding))
    writer.add_token_merges([" ".join(pair) for pair in _MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
