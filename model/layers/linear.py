"""A matrix, perhaps with a bias, applied to a flat batch; and several such as one, side by side."""

import attrs
import torch
from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class Linear:
    """`y = x @ weight.T + bias` for x `[num_tokens, inputs]`."""

    weight: Tensor
    """`[outputs, inputs]`, as a checkpoint has it. Fused matrices stand one below the other."""
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)
