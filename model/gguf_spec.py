"""Turns the header of a GGUF file into a `ModelSpec`.

Imports no torch. The keys are llama.cpp's; where a file says nothing, the value is what llama.cpp takes.
"""

import math
import struct
from typing import Any

from ..engine.core.errors import ModelLoadError
from .architectures import GGUF_ARCHITECTURES, check_spec
from .fields import Fields
from .gguf_file import GGUFFile
from .spec import ModelSpec

_F32, _F16 = 0, 1


def spec_of_gguf(file: GGUFFile) -> ModelSpec:
    """The shape of the model in `file`. Raises ModelLoadError."""
    architecture = GGUF_ARCHITECTURES.get(file.architecture)
    if architecture is None:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise ModelLoadError(f"{file.path}: unknown architecture {file.architecture}; known are {known}.")
    fields = Fields(file.path, file.metadata, f"{file.architecture}.")
    if fields.raw("expert_count"):
        raise fields.fail("expert_count", f"is {fields.raw('expert_count')}: mixtures of experts are not supported")
    num_heads = fields.count("attention.head_count")
    hidden_size = fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", _default_head_dim(fields, hidden_size, num_heads))
    if fields.count("attention.value_length", head_dim) != head_dim:
        raise fields.fail("attention.value_length", f"differs from the key length, {head_dim}")
    tokenizer = Fields(file.path, file.metadata, "tokenizer.ggml.")
    bos = tokenizer.token_ids("bos_token_id")
    # llama.cpp ends an answer at either of these.
    ends = dict.fromkeys(i for key in ("eos", "eot", "eom") for i in tokenizer.token_ids(f"{key}_token_id"))
    length = fields.count("context_length")
    spec = ModelSpec(
        architecture=architecture,
        num_layers=fields.count("block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_shape(file, "token_embd.weight")[0],
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=length,
        tied_embeddings="output.weight" not in file.tensors,
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_parameters=_rope(file, fields, length),
        partial_rotary_factor=fields.count("rope.dimension_count", head_dim) / head_dim,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        torch_dtype=_dtype(file),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=tuple(ends),
    )
    return check_spec(fields, spec)


def _default_head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads and fields.raw("attention.key_length") is None:
        raise fields.fail("attention.head_count", f"({num_heads}) does not divide embedding_length ({hidden_size})")
    return max(1, hidden_size // num_heads)


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelLoadError(f"{file.path}: tensor {name} is missing.")
    return file.tensors[name].shape


def _dtype(file: GGUFFile) -> str:
    """What the matrices are stored in; blocks of a few bits are widened to bfloat16."""
    kinds = {tensor.type_id for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return {frozenset([_F32]): "float32", frozenset([_F16]): "float16"}.get(frozenset(kinds), "bfloat16")


def _rope(file: GGUFFile, fields: Fields, length: int) -> dict[str, Any]:
    """The scaling of the rotary positions, in Hugging Face's names."""
    if "rope_freqs.weight" in file.tensors:
        # Llama 3 files carry the outcome of their scaling as one divisor per frequency. That is what longrope
        # computes from its factors, so it needs no kind of its own.
        divisors = _floats(file, "rope_freqs.weight")
        return {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": length,
        }
    kind = fields.raw("rope.scaling.type")
    if kind is None and fields.raw("rope.scale_linear") is not None:  # files from before 2023-11
        return _linear(fields.number("rope.scale_linear"))
    if kind in (None, "none"):
        return {}
    if kind == "linear":
        return _linear(fields.number("rope.scaling.factor", 1.0))
    if kind != "yarn":
        raise fields.fail("rope.scaling.type", f"is {kind!r}; none, linear and yarn are supported")
    factor = fields.number("rope.scaling.factor")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": fields.count("rope.scaling.original_context_length", length),
    }
    for ours, theirs in (("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")):
        if fields.raw(theirs) is not None:
            scaling[ours] = fields.number(theirs)
    if (attention := fields.number("rope.scaling.attn_factor", 1.0)) != 1.0:
        scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return scaling


def _linear(factor: float) -> dict[str, Any]:
    return {} if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _floats(file: GGUFFile, name: str) -> list[float]:
    tensor = file.tensors[name]
    if tensor.type_id != _F32:
        raise ModelLoadError(f"{file.path}: tensor {name} must be stored as 32-bit floats.")
    with file.path.open("rb") as stream:
        stream.seek(tensor.offset)
        return list(struct.unpack(f"<{tensor.num_bytes // 4}f", stream.read(tensor.num_bytes)))
