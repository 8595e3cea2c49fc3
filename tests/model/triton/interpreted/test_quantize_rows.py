"""Activations to fp8, the kernel in the interpreter: the same bytes as torch's own rounding."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.layers.fp8 import quantize_rows_reference
from triolet.model.layers.triton.quantize_rows import quantize_rows, quantize_rows_launch

from ..interpreter import poison, run_in_both_orders


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 300), st.floats(1e-6, 1e4))
def test_rows_are_rounded_as_torch_rounds_them(seed: int, rows: int, width: int, size: float) -> None:
    """Any width; a row of zeros among them; the scale is the row's own."""
    x = (torch.randn((rows, width), generator=torch.Generator().manual_seed(seed)) * size).to(torch.bfloat16)
    x[-1] = 0
    found, scales = quantize_rows(x)
    wanted, wanted_scales = quantize_rows_reference(x)
    torch.testing.assert_close(scales, wanted_scales)
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.13, atol=2**-9)  # a last bit, where scales differ
    assert (found.view(torch.uint8) != wanted.view(torch.uint8)).float().mean() < 0.05
    bytes_, own = poison(torch.empty((rows, width), dtype=torch.uint8)), poison(torch.empty((rows, 1)))
    run_in_both_orders(lambda: [quantize_rows_launch(x, bytes_, own)], [bytes_, own])
