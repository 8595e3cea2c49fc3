"""SiLU of the gate times the up projection, from the fused matrix's output."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...launch import Launch, runs_kernels

BLOCK = 1024
"""Columns of a program."""


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`silu(gate) * up` `[num_tokens, n]` for `gate_up` `[num_tokens, 2 * n]`, gates first; computed in float32."""
    if out is None:
        out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    if not runs_kernels(gate_up):
        return out.copy_(silu_mul_reference(gate_up))
    if gate_up.shape[0]:
        silu_mul_launch(gate_up, out).run()
    return out


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The same in torch; in float64 where the tensor is."""
    wide = gate_up if gate_up.dtype is torch.float64 else gate_up.float()
    gate, up = wide.chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def silu_mul_launch(gate_up: Tensor, out: Tensor) -> Launch:
    """A program for each `BLOCK` columns of each row."""
    width = out.shape[1]
    return Launch(
        kernel=_silu_mul,
        grid=(gate_up.shape[0], triton.cdiv(width, BLOCK)),
        arguments={
            "gate_up": gate_up,
            "out": out,
            "gate_up_stride": gate_up.stride(0),
            "out_stride": out.stride(0),
            "width": width,
        },
        constants={"BLOCK": BLOCK},
    )


@triton.jit
def _silu_mul(gate_up, out, gate_up_stride, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = gate_up + row * gate_up_stride + columns
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)
