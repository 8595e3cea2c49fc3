"""RMSNorm, with the residual addition before it: one pass over each row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...launch import Launch, next_power_of_2, runs_kernels


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, out: Tensor | None = None
) -> Tensor:
    """`residual += x`, then the RMSNorm of it times `weight`: `[num_tokens, hidden]`.

    `residual` is changed in place; the sum is rounded to its dtype before it is normed, as two steps would do. Without
    a residual `x` itself is normed and nothing is changed. Rows of `x` and `residual` may be apart, elements may not.
    The mean is taken in float32. `out` may be `x`.
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not runs_kernels(x):
        return out.copy_(add_rms_norm_reference(x, residual, weight, eps))
    if x.shape[0]:
        add_rms_norm_launch(x, residual, weight, eps, out).run()
    return out


def add_rms_norm_reference(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """The same in torch; in float64 where the tensors are."""
    if residual is not None:
        x = residual.add_(x)
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide.dtype)).to(x.dtype)


def add_rms_norm_launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> Launch:
    """One program for each row, which it holds in registers."""
    width = x.shape[1]
    block = next_power_of_2(width)
    return Launch(
        kernel=_add_rms_norm,
        grid=(x.shape[0],),
        arguments={
            "x": x,
            "residual": residual,
            "weight": weight,
            "out": out,
            "x_stride": x.stride(0),
            "residual_stride": 0 if residual is None else residual.stride(0),
            "out_stride": out.stride(0),
            "width": width,
            "eps": eps,
        },
        constants={"HAS_RESIDUAL": residual is not None, "BLOCK": block},
        num_warps=min(16, max(1, block // 512)),
    )


@triton.jit
def _add_rms_norm(
    x,
    residual,
    weight,
    out,
    x_stride,
    residual_stride,
    out_stride,
    width,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        place = residual + row * residual_stride + columns
        held = tl.load(place, mask=inside, other=0.0)
        value = (held.to(tl.float32) + value.to(tl.float32)).to(held.dtype)
        tl.store(place, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, (wide * scale * factor).to(out.dtype.element_ty), mask=inside)
