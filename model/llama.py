"""The Llama family in plain PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The batch is flat, `[num_tokens, hidden]`, sequences one behind the other; the model knows nothing of sequences, tables
or caches: attention is a function it is given. Only the rows that are to be sampled go through the head.
"""

from collections.abc import Callable, Iterable

import attrs
import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from .layers.linear import AnyLinear, Linear, can_pack
from .layers.rms_norm import rms_norm
from .layers.rotary import Rotary
from .places import TensorPlaces, layer_parts
from .spec import ModelSpec

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values), each `[num_tokens, heads, head_dim]` and rotated → outputs shaped like the queries.
It stores keys and values and attends to what each token's sequence has stored."""


_MATRICES = ("qkv", "output", "gate_up", "down")


@attrs.frozen(kw_only=True, eq=False)
class DecoderLayer:
    """The weights of a layer; `qkv` and `gate_up` are fused."""

    input_norm: Tensor
    qkv: AnyLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: AnyLinear
    mlp_norm: Tensor
    gate_up: AnyLinear
    down: AnyLinear

    def packed(self) -> "DecoderLayer":
        """The same layer with its matrices packed."""
        return attrs.evolve(
            self,
            qkv=_pack(self.qkv),
            output=_pack(self.output),
            gate_up=_pack(self.gate_up),
            down=_pack(self.down),
        )


@attrs.frozen(kw_only=True, eq=False)
class LlamaModel:
    """Weights and forward pass. Immutable; called by the device thread alone, under `torch.inference_mode`."""

    spec: ModelSpec
    dtype: torch.dtype
    device: torch.device
    embedding: Tensor
    """`[vocab_size, hidden]`."""
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: AnyLinear
    rotary: Rotary

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Logits `[len(rows), vocab_size]` in float32, of the tokens in these rows of the flat batch (None: of all).

        `token_ids` and `positions` are int64 `[num_tokens]`. `rows` may be empty.
        """
        return self.logits(self.hidden(token_ids, positions, attend), rows)

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """What the layers make of the tokens, `[num_tokens, hidden]`, before the last norm."""
        hidden = embedding(token_ids, self.embedding)
        tables = self.rotary.tables(positions, self.dtype)
        for index, layer in enumerate(self.layers):
            hidden = self._layer(index, layer, hidden, tables, attend)
        return hidden

    def normed(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """These rows after the last norm: the model's hidden states, as transformers gives them out."""
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        return rms_norm(hidden, self.norm, self.spec.rms_norm_eps)

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Those of these rows, `[len(rows), vocab_size]` in float32."""
        return self.head(self.normed(hidden, rows)).float()

    def _layer(
        self, index: int, layer: DecoderLayer, hidden: Tensor, tables: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        spec, eps = self.spec, self.spec.rms_norm_eps
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        qkv = layer.qkv(rms_norm(hidden, layer.input_norm, eps)).view(-1, heads + 2 * kv_heads, spec.head_dim)
        values = qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = rms_norm(qkv[:, :heads], layer.q_norm, eps)
            keys = rms_norm(qkv[:, heads : heads + kv_heads], layer.k_norm, eps)
            turned = self.rotary.rotate(torch.cat((queries, keys), 1), tables)
        else:
            turned = self.rotary.rotate(qkv[:, : heads + kv_heads], tables)
        mixed = attend(index, turned[:, :heads], turned[:, heads:], values)
        hidden = hidden + layer.output(mixed.view(-1, heads * spec.head_dim))
        gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, -1)
        return hidden + layer.down(silu(gate).mul_(up))


def build_model(
    spec: ModelSpec,
    weights: Iterable[tuple[str, Tensor]],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    pack: bool | None = None,
    quantize: Callable[[Tensor], AnyLinear] | None = None,
) -> LlamaModel:
    """Build a model from tensors under their Hugging Face names, in any order.

    `max_model_len` matters to rotary types that depend on the length (see `layers/rotary.py`); None is the model's own.
    `pack` rewrites the matrices into the layout that oneDNN multiplies fast, where only it can read them; None does so
    where it helps. `quantize` makes of each matrix of a layer what multiplies in its place, as soon as it is there:
    the plain one is let go.
    Raises `ModelLoadError` for a missing, unknown, doubled or wrongly shaped tensor, naming it, and for rotary
    parameters that are not known.
    """
    places = TensorPlaces(dtype=dtype, device=device)
    rotary = Rotary(spec, max_model_len=max_model_len, device=device)
    table = places.place({"model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size)})
    declared = [_declare_layer(places, spec, layer, quantize) for layer in range(spec.num_layers)]
    norm = places.place({"model.norm.weight": (spec.hidden_size,)})
    head = table if spec.tied_embeddings else places.place({"lm_head.weight": (spec.vocab_size, spec.hidden_size)})
    # A tied model's checkpoint may name the same matrix twice.
    places.fill(weights, ignore=frozenset({"lm_head.weight"}) if spec.tied_embeddings else frozenset())
    del places
    layers = [finish() for finish in declared]
    output: AnyLinear = Linear(weight=head)
    if quantize is None and (can_pack(dtype, torch.device(device)) if pack is None else pack):
        output = _pack(output)
        for index, layer in enumerate(layers):
            layers[index] = layer.packed()  # one at a time: the plain matrices are let go
    return LlamaModel(
        spec=spec,
        dtype=dtype,
        device=torch.device(device),
        embedding=table,
        layers=tuple(layers),
        norm=norm,
        head=output,
        rotary=rotary,
    )


def _pack(linear: AnyLinear) -> AnyLinear:
    return linear.packed() if isinstance(linear, Linear) else linear


def _declare_layer(
    places: TensorPlaces, spec: ModelSpec, layer: int, quantize: Callable[[Tensor], AnyLinear] | None
) -> Callable[[], DecoderLayer]:
    """Places for its tensors; what comes back is called when they have come."""
    tensors: dict[str, Tensor] = {}
    quantized: dict[str, AnyLinear] = {}
    for name, parts in layer_parts(spec, layer).items():
        if quantize is not None and name in _MATRICES:
            # Bound now: the loop goes on.
            places.place(parts, then=lambda whole, name=name: quantized.__setitem__(name, quantize(whole)))  # type: ignore[misc]
        else:
            tensors[name] = places.place(parts)

    def linear(name: str) -> AnyLinear:
        bias = tensors.get(f"{name}_bias")
        if quantize is None:
            return Linear(weight=tensors[name], bias=bias)
        return attrs.evolve(quantized[name], bias=bias)

    def finish() -> DecoderLayer:
        return DecoderLayer(
            input_norm=tensors["input_norm"],
            qkv=linear("qkv"),
            q_norm=tensors.get("q_norm"),
            k_norm=tensors.get("k_norm"),
            output=linear("output"),
            mlp_norm=tensors["mlp_norm"],
            gate_up=linear("gate_up"),
            down=linear("down"),
        )

    return finish
