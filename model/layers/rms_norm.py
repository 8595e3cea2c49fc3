"""RMSNorm: scale each vector to unit root mean square, then by a learned weight."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of `x`, of any shape `[…, n]`, by `weight` `[n]`; the mean is taken in float32."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
