"""What happens to q, k and v between their matrix and attention: norm, rotation and the write to the cache, at once.

Each head of q and k is RMS-normed where the model does so, and turned by its position; k and v go to their slots in the
cache, as fp8 where the cache is fp8. Keys and values are not written anywhere else: attention reads the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...launch import Launch, next_power_of_2, runs_kernels
from .e4m3 import LARGEST, encode_e4m3


def rotate_and_write(
    qkv: Tensor,
    tables: tuple[Tensor, Tensor],
    kv: Tensor,
    slots: Tensor,
    *,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The queries `[num_tokens, num_heads, head_dim]`; keys and values go into `kv`.

    `qkv` is `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, contiguous, queries first; `tables` are those of
    `Rotary.tables`, `[num_tokens, 1, rotary_dim]`; `kv` is a layer's tensor of `KVTensors`; `slots` int64
    `[num_tokens]`, its rows, negative where nothing is to be written. Slots differ from one another. `q_norm` and
    `k_norm` `[head_dim]` come together. An fp8 cache (`torch.float8_e4m3fn`) holds keys divided by `key_scale` and
    values by `value_scale`, float32 `[num_kv_heads]` (None: 1). All is computed in float32 and rounded once. `out` is
    contiguous and shares no memory with `qkv`.
    """
    head_dim = kv.shape[-1]
    if out is None:
        out = torch.empty((qkv.shape[0], num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    norms = None if q_norm is None or k_norm is None else (q_norm, k_norm, eps)
    scales = (key_scale, value_scale)
    if not runs_kernels(qkv):
        rotate_and_write_reference(qkv, tables, kv, slots, out, norms=norms, scales=scales)
    elif qkv.shape[0]:
        rotate_and_write_launch(qkv, tables, kv, slots, out, norms=norms, scales=scales).run()
    return out


Norms = tuple[Tensor, Tensor, float] | None
"""The weights of q and of k, and epsilon."""
Scales = tuple[Tensor | None, Tensor | None]
"""Of keys and of values."""


def rotate_and_write_reference(
    qkv: Tensor, tables: tuple[Tensor, Tensor], kv: Tensor, slots: Tensor, out: Tensor, *, norms: Norms, scales: Scales
) -> None:
    """The same in torch; in float64 where `qkv` is."""
    num_tokens, num_heads, head_dim = out.shape
    num_kv_heads = kv.shape[-2]
    heads = qkv.view(num_tokens, -1, head_dim)
    wide = heads if heads.dtype is torch.float64 else heads.float()
    queries, keys, values = wide.split((num_heads, num_kv_heads, num_kv_heads), 1)
    if norms is not None:
        queries, keys = (_norm(x, weight, norms[2]) for x, weight in zip((queries, keys), norms[:2], strict=True))
    out.copy_(_rotate(queries, tables))
    keys = _rotate(keys, tables)
    if kv.dtype is torch.float8_e4m3fn:
        keys, values = (
            (x if scale is None else x / scale[:, None]).clamp(-LARGEST, LARGEST)
            for x, scale in zip((keys, values), scales, strict=True)
        )
    written = slots >= 0
    rows = kv.view(-1, 2, num_kv_heads, head_dim)
    if kv.dtype is torch.float8_e4m3fn:  # torch indexes bytes, not these
        rows.view(torch.uint8)[slots[written]] = torch.stack((keys, values), 1)[written].to(kv.dtype).view(torch.uint8)
    else:
        rows[slots[written]] = torch.stack((keys, values), 1)[written].to(kv.dtype)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(x.dtype)


def _rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.to(x.dtype) for table in tables)
    width = cos.shape[-1]
    turned = x[..., :width]
    return torch.cat((turned * cos + turned.roll(width // 2, -1) * sin, x[..., width:]), -1)


def rotate_and_write_launch(
    qkv: Tensor, tables: tuple[Tensor, Tensor], kv: Tensor, slots: Tensor, out: Tensor, *, norms: Norms, scales: Scales
) -> Launch:
    """A program for each token and key head: the query heads that share the key, the key and the value."""
    num_tokens, num_heads, head_dim = out.shape
    num_kv_heads = kv.shape[-2]
    group = num_heads // num_kv_heads
    fp8 = kv.dtype is torch.float8_e4m3fn
    elements = next_power_of_2(group) * next_power_of_2(head_dim)
    return Launch(
        kernel=_rotate_and_write,
        grid=(num_tokens, num_kv_heads),
        arguments={
            "qkv": qkv,
            "cosines": tables[0],
            "sines": tables[1],
            "kv": kv.view(torch.uint8) if fp8 else kv,
            "slots": slots,
            "out": out,
            "q_norm": None if norms is None else norms[0],
            "k_norm": None if norms is None else norms[1],
            "key_scale": scales[0] if fp8 else None,
            "value_scale": scales[1] if fp8 else None,
            "eps": 0.0 if norms is None else norms[2],
        },
        constants={
            "GROUP": group,
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "ROTARY_DIM": tables[0].shape[-1],
            "GROUP_PAD": next_power_of_2(group),
            "HEAD_PAD": next_power_of_2(head_dim),
            "HAS_NORM": norms is not None,
            "FP8": fp8,
        },
        num_warps=min(4, max(1, elements // 512)),
    )


@triton.jit
def _turned(row, inside, norm, cosines, sines, eps, HEAD_DIM: tl.constexpr, R: tl.constexpr, HAS_NORM: tl.constexpr):
    """Heads at the pointers `row` `[n, HEAD_PAD]` of which `inside` are there, normed and turned, in float32."""
    d = tl.arange(0, row.shape[1])
    # The other half of the pair. It is read a second time: no thread need wait for another's registers.
    other = tl.where(d < R // 2, d + R // 2, tl.where(d < R, d - R // 2, d))
    x = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(row + (other - d)[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        x = x * scale * tl.load(norm + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
        y = y * scale * tl.load(norm + other, mask=d < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
    cos = tl.load(cosines + d, mask=d < R, other=1.0).to(tl.float32)
    sin = tl.load(sines + d, mask=d < R, other=0.0).to(tl.float32)
    return x * cos[None, :] + y * sin[None, :]


@triton.jit
def _stored(x, scale, head, FP8: tl.constexpr, dtype: tl.constexpr):
    """What the cache holds of `x`."""
    if FP8:
        if scale is not None:
            x = x / tl.load(scale + head)
        return encode_e4m3(x)
    else:
        return x.to(dtype)


@triton.jit
def _rotate_and_write(
    qkv,
    cosines,
    sines,
    kv,
    slots,
    out,
    q_norm,
    k_norm,
    key_scale,
    value_scale,
    eps,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    HAS_NORM: tl.constexpr,
    FP8: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    NUM_HEADS: tl.constexpr = GROUP * NUM_KV_HEADS
    d = tl.arange(0, HEAD_PAD)[None, :]
    source = qkv + token * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM + d
    cosines += token * ROTARY_DIM
    sines += token * ROTARY_DIM
    member = tl.arange(0, GROUP_PAD)[:, None]
    here = (member < GROUP) & (d < HEAD_DIM)
    place = (head * GROUP + member) * HEAD_DIM
    turned = _turned(source + place, here, q_norm, cosines, sines, eps, HEAD_DIM, ROTARY_DIM, HAS_NORM)
    tl.store(out + token * NUM_HEADS * HEAD_DIM + place + d, turned.to(out.dtype.element_ty), mask=here)
    slot = tl.load(slots + token)
    if slot >= 0:
        there = d < HEAD_DIM
        row = source + (NUM_HEADS + head) * HEAD_DIM
        target = kv + slot * (2 * NUM_KV_HEADS * HEAD_DIM) + head * HEAD_DIM + d
        key = _turned(row, there, k_norm, cosines, sines, eps, HEAD_DIM, ROTARY_DIM, HAS_NORM)
        tl.store(target, _stored(key, key_scale, head, FP8, kv.dtype.element_ty), mask=there)
        value = tl.load(row + NUM_KV_HEADS * HEAD_DIM, mask=there, other=0.0).to(tl.float32)
        value = _stored(value, value_scale, head, FP8, kv.dtype.element_ty)
        tl.store(target + NUM_KV_HEADS * HEAD_DIM, value, mask=there)
