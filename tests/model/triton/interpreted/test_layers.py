"""RMSNorm and SiLU kernels in the interpreter, against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.layers.triton.rms_norm import (
    add_rms_norm,
    add_rms_norm_launch,
    add_rms_norm_reference,
)
from triolet.model.layers.triton.silu_mul import silu_mul, silu_mul_launch, silu_mul_reference

from ..interpreter import poison, run_in_both_orders

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
SEEDS = st.integers(0, 2**32 - 1)


def randn(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal up to two roundings to the dtype of what was found."""
    eps = 2 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=eps)


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.integers(1, 5), st.integers(1, 700), DTYPES, st.booleans())
def test_rms_norm_adds_the_residual_and_norms_the_sum(
    seed: int, rows: int, width: int, dtype: torch.dtype, has_residual: bool
) -> None:
    """Any width, with a residual that is changed in place or without one; the sum is rounded before it is normed."""
    x, weight = randn(seed, rows, width, dtype=dtype), randn(seed + 1, width, dtype=dtype)
    residual = randn(seed + 2, rows, width, dtype=dtype) if has_residual else None
    summed = x if residual is None else x + residual
    wanted = add_rms_norm_reference(summed.double(), None, weight, 1e-5)
    out = poison(torch.empty_like(x))
    outputs = [out] if residual is None else [out, residual]
    run_in_both_orders(lambda: [add_rms_norm_launch(x, residual, weight, 1e-5, out)], outputs)
    close(out, wanted)
    if residual is not None:
        assert torch.equal(residual, summed)


@settings(deadline=None, max_examples=10)
@given(SEEDS, st.integers(1, 3), st.integers(1, 1500), DTYPES)
def test_silu_times_up(seed: int, rows: int, width: int, dtype: torch.dtype) -> None:
    """Any width, below and above what a program takes."""
    gate_up = 3 * randn(seed, rows, 2 * width, dtype=dtype)
    out = poison(torch.empty(rows, width, dtype=dtype))
    run_in_both_orders(lambda: [silu_mul_launch(gate_up, out)], [out])
    close(out, silu_mul_reference(gate_up.double()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_launchers_start_the_kernels_and_take_an_empty_batch(dtype: torch.dtype) -> None:
    """What the model calls gives what the references give; no rows are no error."""
    x, weight = randn(1, 3, 48, dtype=dtype), randn(2, 24, dtype=dtype)
    close(silu_mul(x), silu_mul_reference(x.double()))
    close(add_rms_norm(x[:, :24], None, weight, 1e-6), add_rms_norm_reference(x[:, :24].double(), None, weight, 1e-6))
    assert silu_mul(x[:0]).shape == (0, 24)
    assert add_rms_norm(x[:0, :24], None, weight, 1e-6).shape == (0, 24)
