"""Every kernel on the card against its plain torch reference in float64, over a few shapes each.

The tests compare them over random shapes in Triton's interpreter; here they are what the card's compiler made of them.
"""

from collections.abc import Callable, Iterator

import attrs
import torch
from torch import Tensor

from triolet.model.attention.triton.copy_blocks import BlockCopier
from triolet.model.attention.triton.paged import paged_attention, paged_attention_reference
from triolet.model.attention.triton.rotate_and_write import rotate_and_write, rotate_and_write_reference
from triolet.model.layers.fp8 import Fp8Linear, quantize_rows_reference
from triolet.model.layers.triton.quantize_rows import quantize_rows
from triolet.model.layers.triton.rms_norm import add_rms_norm, add_rms_norm_reference
from triolet.model.layers.triton.sample import SamplingColumns, sample_tokens, sample_tokens_reference
from triolet.model.layers.triton.silu_mul import silu_mul, silu_mul_reference

from .scene import Case, Scene
from .table import Row

Errors = tuple[float, float]
"""The largest error relative to the largest number, and what is allowed."""


def check_kernels(device: torch.device, dtype: torch.dtype, cases: list[Case], width: int, vocab: int) -> list[Row]:
    """A row for each kernel: the worst of its cases. One that raises is a row that says what."""
    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    checks: dict[str, Callable[[], Iterator[Errors]]] = {
        "paged attention": lambda: _attention(device, dtype, cases, eps),
        "rotation, norm and KV write": lambda: _rotation(device, dtype, eps),
        "RMSNorm with residual": lambda: _norm(device, dtype, width, eps),
        "SiLU times up": lambda: _silu(device, dtype, width, eps),
        "sampling (tokens that differ)": lambda: _sampling(device, vocab),
        "block copies": lambda: _copies(device, dtype),
        "rows to fp8": lambda: _rows(device, dtype, width),
        "fp8 product": lambda: _product(device, width),
    }
    rows = []
    for name, check in checks.items():
        try:
            errors = list(check())
        except Exception as error:
            rows.append(Row(what=name, value=f"{type(error).__name__}: {error}"[:120], ok=False))
            continue
        worst = max(errors, key=lambda pair: pair[0] / pair[1])
        rows.append(
            Row(
                what=name,
                value=f"error {worst[0]:.1e} in {len(errors)} cases",
                goal=f"≤ {worst[1]:.0e}",
                ok=all(error <= allowed for error, allowed in errors),
            )
        )
    return rows


def _error(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.double().cpu(), wanted.double().cpu()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))


def _attention(device: torch.device, dtype: torch.dtype, cases: list[Case], eps: float) -> Iterator[Errors]:
    for case in cases:
        scene = Scene(case, device, dtype)
        found = paged_attention(scene.queries, scene.kv, scene.batch, scene.terms)
        wanted = torch.zeros(scene.queries.shape, dtype=torch.float64)
        batch = attrs.evolve(
            scene.batch,
            **{name: getattr(scene.batch, name).cpu() for name in ("query_starts", "context_lengths", "tables")},
        )
        kv = scene.kv.cpu().double() if case.fp8 is False else scene.kv.cpu().float().double()
        paged_attention_reference(scene.queries.cpu().double(), kv, batch, scene.terms, wanted)
        yield _error(found, wanted), 8 * eps


def _rotation(device: torch.device, dtype: torch.dtype, eps: float) -> Iterator[Errors]:
    for heads, kv_heads, dim, has_norm in ((8, 2, 64, False), (4, 4, 128, True)):
        qkv = torch.randn(21, (heads + 2 * kv_heads) * dim, device=device, dtype=dtype)
        angles = torch.rand(21, 1, dim // 2, device=device) * 100
        half = (angles.cos().to(dtype), angles.sin().to(dtype))
        tables = (torch.cat((half[0], half[0]), -1), torch.cat((-half[1], half[1]), -1))
        kv = torch.zeros(4, 16, 2, kv_heads, dim, device=device, dtype=dtype)
        slots = torch.randperm(64, device=device)[:21]
        slots[3] = -1
        norm = torch.rand(dim, device=device, dtype=dtype) + 0.5 if has_norm else None
        found = rotate_and_write(qkv, tables, kv, slots, num_heads=heads, q_norm=norm, k_norm=norm, eps=1e-5)
        kv_wanted, wanted = torch.zeros_like(kv).double().cpu(), torch.zeros(found.shape, dtype=torch.float64)
        wide = tuple(table.cpu().double() for table in tables)
        norms = None if norm is None else (norm.cpu().double(), norm.cpu().double(), 1e-5)
        rotate_and_write_reference(
            qkv.cpu().double(), wide, kv_wanted, slots.cpu(), wanted, norms=norms, scales=(None, None)
        )
        yield _error(found, wanted), 4 * eps
        yield _error(kv, kv_wanted), 4 * eps


def _norm(device: torch.device, dtype: torch.dtype, width: int, eps: float) -> Iterator[Errors]:
    for rows in (1, 33):
        x, residual = (torch.randn(rows, width, device=device, dtype=dtype) for _ in range(2))
        weight = torch.rand(width, device=device, dtype=dtype)
        wanted = add_rms_norm_reference((x + residual).cpu().double(), None, weight.cpu().double(), 1e-5)
        yield _error(add_rms_norm(x, residual, weight, 1e-5), wanted), 4 * eps


def _silu(device: torch.device, dtype: torch.dtype, width: int, eps: float) -> Iterator[Errors]:
    for rows in (1, 17):
        x = torch.randn(rows, 2 * width, device=device, dtype=dtype)
        yield _error(silu_mul(x), silu_mul_reference(x.cpu().double())), 4 * eps


def _sampling(device: torch.device, vocab: int) -> Iterator[Errors]:
    """A token may be another one only where the uniform number falls on a border, up to rounding: one in a thousand."""
    count = 64

    def column(low: float, high: float, dtype: torch.dtype = torch.float64) -> Tensor:
        return (torch.rand(count) * (high - low) + low).to(dtype)

    columns = SamplingColumns(
        temperature=column(0.2, 1.5) * (torch.arange(count) % 4 > 0),
        top_k=column(0, 100, torch.int64) * (torch.arange(count) % 3),
        top_p=column(0.5, 1.0),
        min_p=column(0, 0.1),
        seeds=torch.arange(count),
        positions=torch.arange(count) * 7,
        repetition=torch.ones(count),
        frequency=torch.zeros(count),
        presence=torch.zeros(count),
    )
    logits = torch.randn(count, vocab) * 4
    slots = torch.arange(count)
    tokens, status = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.int32)
    options = {"bias": None, "allowed": None, "take": False}
    sample_tokens_reference(logits.clone(), slots, columns, tokens, status, **options)
    moved = SamplingColumns(
        **{name: None if value is None else value.to(device) for name, value in attrs.asdict(columns).items()}
    )
    found, _ = sample_tokens(logits.to(device), slots.to(device), moved, take=False)
    yield float((found.cpu() != tokens).float().mean()), 0.02


def _copies(device: torch.device, dtype: torch.dtype) -> Iterator[Errors]:
    tensors = [torch.randn(9, 16, 2, 2, 64, device=device, dtype=dtype) for _ in range(3)]
    wanted = [tensor.clone() for tensor in tensors]
    for tensor in wanted:
        tensor[[5, 2]] = tensor[[2, 7]]
    BlockCopier(tensors).copy([2, 7], [5, 2])
    for tensor, right in zip(tensors, wanted, strict=True):
        yield _error(tensor, right), 1e-9


def _rows(device: torch.device, dtype: torch.dtype, width: int) -> Iterator[Errors]:
    x = torch.randn(19, width, device=device, dtype=dtype)
    found, scales = quantize_rows(x)
    wanted, wanted_scales = quantize_rows_reference(x.cpu())
    yield _error(scales, wanted_scales), 1e-5
    yield float((found.view(torch.uint8).cpu() != wanted.view(torch.uint8)).float().mean()), 0.01


def _product(device: torch.device, width: int) -> Iterator[Errors]:
    weight = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    linear = Fp8Linear.of(weight)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        raise RuntimeError("not on this card: fp8 products need compute capability 9.0")
    for tokens in (1, 16, 100):
        x = torch.randn(tokens, width, device=device, dtype=torch.bfloat16)
        rows, scales = quantize_rows(x)
        exact = (rows.cpu().double() @ linear.weight.cpu().double().t()) * scales.cpu() * linear.scale.cpu()
        yield _error(linear(x), exact), 2**-6
