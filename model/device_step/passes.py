"""The forward pass of a Llama over `Kernels`, in pieces that meet at attention.

    first   embedding ─ norm ─ qkv ─ rotate and write
    between attention's outputs ─ output ─ norm ─ mlp ─ norm ─ qkv ─ rotate and write     (of the next layer)
    last    attention's outputs ─ output ─ norm ─ mlp

Whole, they are a decode step that one graph holds; a mixed step runs its attention between recorded pieces. Arithmetic
and order are those of `LlamaModel.forward`.
"""

import attrs
from torch import Tensor
from torch.nn.functional import embedding

from ..llama import DecoderLayer, LlamaModel
from .kernels import DeviceLayout, HeadNorms, Kernels


@attrs.frozen(kw_only=True, eq=False)
class Tokens:
    """The flat batch."""

    ids: Tensor
    positions: Tensor
    """int64 `[num_tokens]`, both."""
    slots: tuple[Tensor, ...]
    """For each KV group; see `DeviceLayout.slots`."""


@attrs.frozen(kw_only=True, eq=False)
class Halfway:
    """Between two pieces: the queries of a layer, whose keys and values are written, and what waits for its outputs."""

    queries: Tensor
    residual: Tensor
    turns: object


class DevicePass:
    """Weights and kernels. Keeps nothing of a step."""

    def __init__(self, model: LlamaModel, kernels: Kernels) -> None:
        self.model = model
        self.kernels = kernels
        eps = model.spec.rms_norm_eps
        self._head_norms = [
            HeadNorms(queries=layer.q_norm, keys=layer.k_norm, eps=eps)
            if layer.q_norm is not None and layer.k_norm is not None
            else None
            for layer in model.layers
        ]

    @property
    def num_layers(self) -> int:
        return len(self.model.layers)

    def hidden(self, tokens: Tokens, layout: DeviceLayout) -> Tensor:
        """All of it: the last hidden states `[num_tokens, hidden]`, before the last norm."""
        halfway = self.first(tokens)
        for layer in range(self.num_layers):
            outputs = self.kernels.attend(layer, halfway.queries, layout)
            if layer + 1 < self.num_layers:
                halfway = self.between(layer, outputs, halfway, tokens)
        return self.last(outputs, halfway)

    def first(self, tokens: Tokens) -> Halfway:
        """Up to the attention of layer 0."""
        hidden = embedding(tokens.ids, self.model.embedding)
        return self._before(0, hidden, None, self.kernels.turns(tokens.positions), tokens)

    def between(self, layer: int, outputs: Tensor, halfway: Halfway, tokens: Tokens) -> Halfway:
        """From the attention of `layer` to that of the next."""
        hidden, residual = self._after(self.model.layers[layer], outputs, halfway)
        return self._before(layer + 1, hidden, residual, halfway.turns, tokens)

    def last(self, outputs: Tensor, halfway: Halfway) -> Tensor:
        """From the attention of the last layer on."""
        hidden, residual = self._after(self.model.layers[-1], outputs, halfway)
        return residual + hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[len(hidden), vocab_size]`."""
        return self.head(hidden).float()

    def head(self, hidden: Tensor) -> Tensor:
        """The same in the model's dtype."""
        return self.model.head(self.normed(hidden))

    def normed(self, hidden: Tensor) -> Tensor:
        """The model's hidden states, as transformers gives them out."""
        return self.kernels.add_norm(hidden, None, self.model.norm, self.model.spec.rms_norm_eps)[0]

    def _before(self, index: int, hidden: Tensor, residual: Tensor | None, turns: object, tokens: Tokens) -> Halfway:
        layer = self.model.layers[index]
        normed, residual = self.kernels.add_norm(hidden, residual, layer.input_norm, self.model.spec.rms_norm_eps)
        norms = self._head_norms[index]
        queries = self.kernels.rotate_and_write(index, layer.qkv(normed), norms, turns, tokens.slots)
        return Halfway(queries=queries, residual=residual, turns=turns)

    def _after(self, layer: DecoderLayer, outputs: Tensor, halfway: Halfway) -> tuple[Tensor, Tensor]:
        mixed = layer.output(outputs.reshape(outputs.shape[0], -1))
        normed, residual = self.kernels.add_norm(mixed, halfway.residual, layer.mlp_norm, self.model.spec.rms_norm_eps)
        return layer.down(self.kernels.silu_mul(layer.gate_up(normed))), residual
