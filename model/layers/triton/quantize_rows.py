"""Activations to fp8 (e4m3), a scale for each row: one pass, one kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention.triton.e4m3 import encode_e4m3
from ...launch import Launch, next_power_of_2, runs_kernels
from ..fp8 import E4M3, LARGEST, SMALLEST_SCALE, quantize_rows_reference


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 `[n, width]` and float32 scales `[n, 1]`; rows of `x` may be apart, elements may not."""
    if not runs_kernels(x):
        return quantize_rows_reference(x)
    rows = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    if x.shape[0]:
        quantize_rows_launch(x, rows, scales).run()
    return rows.view(E4M3), scales


def quantize_rows_launch(x: Tensor, rows: Tensor, scales: Tensor) -> Launch:
    """One program for each row, which it holds in registers."""
    block = next_power_of_2(x.shape[1])
    return Launch(
        kernel=_quantize_rows,
        grid=(x.shape[0],),
        arguments={"x": x, "rows": rows, "scales": scales, "x_stride": x.stride(0), "width": x.shape[1]},
        constants={"LARGEST": LARGEST, "SMALLEST": SMALLEST_SCALE, "BLOCK": block},
        num_warps=min(16, max(1, block // 512)),
    )


@triton.jit
def _quantize_rows(
    x, rows, scales, x_stride, width, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0) / LARGEST, SMALLEST)
    tl.store(scales + row, scale)
    tl.store(rows + row * width + columns, encode_e4m3(value / scale), mask=inside)
