"""Triton's interpreter, mended, and used so that errors show.

In triton 3.6 and 3.7 it multiplies the bit patterns of bfloat16 matrices as integers, and rounds float32 to bfloat16 by
cutting off what doesn't fit. The chip does neither. And that of triton 3.6 takes no bound of a loop from numpy 2.4.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from triolet.model.launch import Launch


def _from_bfloat16(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(numbers: Any) -> Any:
    rounded = torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


def mend() -> None:
    """Put right bounds of loops, and conversions and products of bfloat16, in this process."""
    builder, patch = interpreter.InterpreterBuilder, interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor
    cast, fp_to_fp, dot = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot

    def convert(self: Any, source: Any, target: Any, otherwise: Any) -> Any:
        pair = (source.dtype.scalar, target.scalar)
        if pair == (tl.bfloat16, tl.float32):
            return interpreter.TensorHandle(_from_bfloat16(source.data), tl.float32)
        if pair == (tl.float32, tl.bfloat16):
            return interpreter.TensorHandle(_to_bfloat16(source.data), tl.bfloat16)
        return otherwise()

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        return convert(self, source, target, lambda: cast(self, source, target))

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        return convert(self, source, target, lambda: fp_to_fp(self, source, target, rounding))

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (interpreter.TensorHandle(_from_bfloat16(x.data), tl.float32) for x in (a, b))
        return dot(self, a, b, d, *rest)

    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = cast_impl, create_fp_to_fp, create_dot


@contextmanager
def programs_in_reverse() -> Iterator[None]:
    """The interpreter runs a grid's programs one after the other; here from the last to the first."""
    builder = interpreter.interpreter_builder
    forward = builder.set_grid_idx
    builder.set_grid_idx = lambda *at: forward(*(n - 1 - i for n, i in zip(builder.grid_dim, at, strict=True)))
    try:
        yield
    finally:
        del builder.set_grid_idx


def run_in_both_orders(launches: Callable[[], Iterable[Launch]], outputs: Sequence[torch.Tensor]) -> None:
    """Run what `launches` makes twice, from the same inputs, and see that the order of programs changes no bit.

    `outputs` are what the kernels write, as it was before: tensors that they also read are put back between the runs.
    """
    before = [output.clone() for output in outputs]
    for launch in launches():
        launch.run()
    first = [output.clone() for output in outputs]
    for output, held in zip(outputs, before, strict=True):
        output.copy_(held)
    with programs_in_reverse():
        for launch in launches():
            launch.run()
    for output, held in zip(outputs, first, strict=True):
        assert torch.equal(bits(output), bits(held)), "what is computed depends on the order of programs"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes, so that NaN equals NaN."""
    return tensor.contiguous().view(torch.uint8)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or with a number that no one expects."""
    if tensor.dtype is torch.float8_e4m3fn:
        tensor.view(torch.uint8).fill_(0x7F)
        return tensor
    return tensor.fill_(float("nan") if tensor.is_floating_point() else -77)


def fresh_seed() -> int:
    """Another one in each run; a test that uses it shows it where it fails."""
    return secrets.randbits(31)
