"""What the card can do, and what attention gets out of it."""

import attrs
import torch

from triolet.model.attention.triton.paged import paged_attention
from triolet.model.layers.fp8 import Fp8Linear, quantize_rows

from .scene import Case, Scene
from .table import Row, ratio, seconds_of

ATTENTION_GOAL = 0.85


@attrs.frozen(kw_only=True)
class Card:
    """Measured, not read off a data sheet."""

    bytes_per_s: float
    """Of a copy: read and written together."""
    bf16_flops: float
    fp8_flops: float
    """0 where the card has no fp8."""


def measure_card(device: torch.device, *, copy_bytes: int, size: int, times: int) -> tuple[Card, list[Row]]:
    """Copy bandwidth, and products of large square matrices."""
    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * copy_bytes / seconds_of(lambda: target.copy_(source), device, times=times)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * size**3
    bf16 = flops / seconds_of(lambda: a @ b, device, times=times)
    fp8 = 0.0
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        linear, (rows, scale) = Fp8Linear.of(b), quantize_rows(a)
        fp8 = flops / seconds_of(
            lambda: torch._scaled_mm(
                rows, linear.weight.t(), scale_a=scale, scale_b=linear.scale, out_dtype=torch.bfloat16
            ),
            device,
            times=times,
        )
    card = Card(bytes_per_s=bandwidth, bf16_flops=bf16, fp8_flops=fp8)
    return card, [
        Row(what="copy bandwidth", value=f"{bandwidth / 1e9:,.0f} GB/s"),
        Row(what="bf16 products", value=f"{bf16 / 1e12:,.1f} TFLOP/s"),
        Row(what="fp8 products", value=f"{fp8 / 1e12:,.1f} TFLOP/s" if fp8 else "not on this card"),
    ]


def measure_attention(
    device: torch.device, dtype: torch.dtype, card: Card, cases: dict[str, Case], *, times: int
) -> list[Row]:
    """Bytes of K and V over time, as a share of the copy bandwidth."""
    rows = []
    for name, case in cases.items():
        scene = Scene(case, device, dtype)
        out = torch.empty_like(scene.queries)
        seconds = seconds_of(
            lambda scene=scene, out=out: paged_attention(scene.queries, scene.kv, scene.batch, scene.terms, out=out),
            device,
            times=times,
        )
        speed = scene.kv_bytes / seconds
        detail = f"{speed / 1e9:,.0f} GB/s, {seconds * 1e6:,.0f} µs"
        rows.append(ratio(f"decode attention, {name}", speed / card.bytes_per_s, goal=ATTENTION_GOAL, detail=detail))
    return rows
