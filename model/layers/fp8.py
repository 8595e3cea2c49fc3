"""A matrix in eight bits for GPUs that multiply such (W8A8): e4m3 with a scale for each output, and activations brought
to e4m3 as they come, with a scale for each token.

    y = (x8 @ w8.T) * x_scale * w_scale + bias

Imports torch. `torch._scaled_mm` multiplies on CUDA; elsewhere the same numbers are multiplied in float32, so that the
arithmetic can be tried without a GPU.
"""

import attrs
import torch
from torch import Tensor

from ...engine.core.errors import ConfigurationError

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of e4m3; there is no infinity."""
SMALLEST_SCALE = 1e-12
"""Rows of zeros have one too."""


@attrs.frozen(kw_only=True, eq=False)
class Fp8Linear:
    """`y = x @ weight.T + bias` for x `[num_tokens, inputs]` in bfloat16; `inputs` and outputs are multiples of 16."""

    weight: Tensor
    """e4m3 `[outputs, inputs]`."""
    scale: Tensor
    """float32 `[1, outputs]`."""
    bias: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor) -> "Fp8Linear":
        """A matrix `[outputs, inputs]` of any floating type. Raises `ConfigurationError` where no GPU multiplies it."""
        if weight.shape[0] % 16 or weight.shape[1] % 16:
            raise ConfigurationError(
                f"--quantization fp8 cannot be used: the model has a matrix of {list(weight.shape)}, and GPUs multiply "
                f"fp8 in multiples of 16."
            )
        rows, scale = quantize_rows_reference(weight)
        return cls(weight=rows, scale=scale.t().contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        rows, scale = quantize_rows(x)
        if x.device.type == "cuda":
            product: Tensor = torch._scaled_mm(
                rows, self.weight.t(), scale_a=scale, scale_b=self.scale, bias=self.bias, out_dtype=x.dtype
            )
            return product
        product = (rows.float() @ self.weight.float().t()) * scale * self.scale
        if self.bias is not None:
            product += self.bias.float()
        return product.to(x.dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 `[n, width]` and float32 scales `[n, 1]` of x `[n, width]`: by one kernel on a GPU."""
    if x.device.type != "cuda":
        return quantize_rows_reference(x)
    from .triton.quantize_rows import quantize_rows as by_kernel

    return by_kernel(x)


def quantize_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same in torch: each row's largest number becomes the largest of e4m3."""
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (wide / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale
