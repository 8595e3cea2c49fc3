"""Reads the tensors of a GGUF file, under Hugging Face's names and in its layout.

Imports torch, numpy and gguf on use. Blocks of a few bits are widened to float32 by gguf's own routines; 16- and 32-bit
floats are mapped from the file without a copy. llama files hold the rows of q and k in the order of ggml's rotary
kernel (pairs side by side); they are put back into Hugging Face's (halves).
"""

import mmap
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ..engine.core.errors import ModelLoadError
from .gguf_file import GGUFFile, GGUFTensor
from .spec import ModelSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array = np.ndarray[Any, Any]

_OUTSIDE: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NOT_WEIGHTS: Final = {"rope_freqs.weight"}  # read into the spec
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_F32, _F16, _BF16 = 0, 1, 30


def hugging_face_name(name: str) -> str | None:
    """What Hugging Face calls tensor `name` of a GGUF file; None for one that these models don't have."""
    if match := _LAYER_NAME.fullmatch(name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}" if part in _IN_LAYER else None
    stem, _, kind = name.rpartition(".")
    return f"{_OUTSIDE[stem]}.{kind}" if stem in _OUTSIDE else None


def gguf_weights(file: GGUFFile, spec: ModelSpec) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Each weight, in the order of the file; it may be a view of the mapped file. Raises ModelLoadError."""
    with file.path.open("rb") as stream:
        # A private mapping: torch wants arrays that can be written, and nothing written here reaches the file.
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    for tensor in file.tensors.values():
        if tensor.name in _NOT_WEIGHTS:
            continue
        name = hugging_face_name(tensor.name)
        if name is None:
            raise ModelLoadError(f"{file.path}: tensor {tensor.name} has no place in a {spec.architecture}.")
        stored = _stored(data, tensor)
        if file.architecture == "llama" and (heads := _rotary_heads(name, spec)):
            stored = _unpermute(file, tensor, stored, heads)
        yield name, _widen(file, tensor, stored)


def _stored(data: mmap.mmap, tensor: GGUFTensor) -> "Array":
    """The tensor as it lies in the file: its floats, or its rows as the bytes of their blocks."""
    import numpy as np

    array_type = np.dtype({_F32: np.float32, _F16: np.float16, _BF16: np.int16}.get(tensor.type_id, np.uint8))
    array = np.frombuffer(data, array_type, tensor.num_bytes // array_type.itemsize, tensor.offset)
    return array.reshape(tensor.shape if array_type != np.uint8 else (*tensor.shape[:-1], -1))


def _widen(file: GGUFFile, tensor: GGUFTensor, stored: "Array") -> "torch.Tensor":
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    if tensor.type_id in (_F32, _F16):
        return torch.from_numpy(stored)
    if tensor.type_id == _BF16:
        return torch.from_numpy(stored).view(torch.bfloat16)
    kind = GGMLQuantizationType(tensor.type_id)
    try:
        return torch.from_numpy(dequantize(stored, kind)).reshape(tensor.shape)
    except NotImplementedError:
        raise ModelLoadError(
            f"{file.path}: tensor {tensor.name} is stored as {kind.name}, which is not read."
        ) from None


def _rotary_heads(name: str, spec: ModelSpec) -> int:
    """The heads of a tensor whose rows are rotated; 0 for the others."""
    if ".self_attn.q_proj." in name:
        return spec.num_heads
    return spec.num_kv_heads if ".self_attn.k_proj." in name else 0


def _unpermute(file: GGUFFile, tensor: GGUFTensor, stored: "Array", heads: int) -> "Array":
    """Rows (head, pair, side) become rows (head, side, pair). Done on what is stored: it is smaller, and numpy's copy
    waits for no team of threads, as torch's does (0.7 s of a start on a busy machine)."""
    rows = stored.shape[0]
    if rows % (2 * heads):
        raise ModelLoadError(f"{file.path}: tensor {tensor.name} has {rows} rows, not a multiple of 2 x {heads} heads.")
    return stored.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(stored.shape)
