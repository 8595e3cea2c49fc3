"""Logits and greedy tokens of random tiny models equal transformers', and bad weights are named."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve

from tests.model.running import Driver, greedy_tokens, our_model, reference_model, spec_of
from tests.model.test_rotary import TYPES
from triolet.engine.core.errors import ModelLoadError
from triolet.model.attention import AttentionShape
from triolet.model.attention.interface import StepLayout
from triolet.model.attention.torch_backend import TorchAttention
from triolet.model.kv import KVTensors
from triolet.model.layers.linear import Linear, PackedLinear, can_pack
from triolet.model.llama import LlamaModel, build_model

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, grouped heads": ("llama", {}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1}),
    "llama, multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "llama, all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("llama", {"head_dim": 40}),
    "mistral, full attention": ("mistral", {"sliding_window": None}),
    "mistral, sliding window": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen2, some layers sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3, tied, biases": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
}
PROMPT = [(i * 29 + 5) % 131 for i in range(40)]


def all_logits(model: LlamaModel, tokens: list[int]) -> torch.Tensor:
    """Logits at every position, in one step of one sequence, through the torch backend."""
    kv = KVTensors(model.spec, num_blocks=len(tokens) // 4 + 1, block_size=4, dtype=model.dtype)
    backend = TorchAttention(AttentionShape.of(model.spec), kv)
    layout = StepLayout(
        query_lengths=np.array([len(tokens)]),
        context_lengths=np.array([len(tokens)]),
        tables=(np.arange(kv.num_blocks, dtype=np.int32)[None],),
        write_slots=(np.arange(len(tokens)),),
    )
    metadata = backend.prepare(layout)

    def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        backend.write(layer, keys, values, metadata)
        return backend.attend(layer, queries, metadata)

    with torch.inference_mode():
        return model.forward(torch.tensor(tokens), torch.arange(len(tokens)), attend)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str) -> None:
    """At every position of a prompt, in float32."""
    family, fields = MODELS[name]
    reference = reference_model(family, **fields)
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(all_logits(our_model(reference), PROMPT), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    """Prompt and answer, token by token, equal `generate`."""
    family, fields = MODELS[name]
    reference = reference_model(family, seed=1, **fields)
    driver = Driver(our_model(reference))
    assert driver.generate(driver.join(PROMPT), 24) == greedy_tokens(reference, PROMPT, 24)


@pytest.mark.parametrize("name", [name for name in TYPES if not name.startswith("proportional")])
def test_each_kind_of_rotary_scaling_gives_the_tokens_of_transformers(name: str) -> None:
    """Within the length that the model was made for, so that length-dependent types agree too."""
    parameters = {"rope_type": name.split(",")[0], "rope_theta": 10000.0, **TYPES[name]}
    fields: dict[str, Any] = {"rope_parameters": parameters}
    length = 256
    if name.startswith("longrope"):
        length = 64  # with a longest sequence past the original length the long factors hold from the start
    reference = reference_model("llama", **fields)
    driver = Driver(our_model(reference, max_model_len=length))
    prompt = PROMPT[:30]
    assert driver.generate(driver.join(prompt), 24) == greedy_tokens(reference, prompt, 24)


def test_long_factors_equal_transformers_on_a_long_prompt() -> None:
    """A longrope model that admits long sequences uses the long factors, as transformers does past the length."""
    parameters = {"rope_type": "longrope", "rope_theta": 10000.0, **TYPES["longrope"]}
    reference = reference_model("llama", rope_parameters=parameters)
    driver = Driver(our_model(reference))
    prompt = PROMPT + PROMPT[:30]
    assert driver.generate(driver.join(prompt), 12) == greedy_tokens(reference, prompt, 12)


def test_bfloat16_stays_near_float32() -> None:
    """In bfloat16, packed or not, logits differ from float32's by its rounding alone."""
    reference = reference_model("llama")
    exact = all_logits(our_model(reference), PROMPT)
    scale = exact.std()
    for pack in (False, can_pack(torch.bfloat16, torch.device("cpu"))):
        logits = all_logits(our_model(reference, dtype=torch.bfloat16, pack=pack), PROMPT)
        assert logits.dtype is torch.float32
        assert ((logits - exact).std() / scale).item() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_a_packed_matrix_gives_the_same_product(tokens: int, bias: bool, dtype: torch.dtype) -> None:
    """Whatever the batch, also for sizes that are no multiple of the layout's."""
    if not can_pack(dtype, torch.device("cpu")):
        return  # this machine keeps its matrices plain
    weight, x = torch.randn(131, 70).to(dtype), torch.randn(tokens, 70).to(dtype)
    plain = Linear(weight=weight, bias=torch.randn(131).to(dtype) if bias else None)
    packed = plain.packed()
    assert isinstance(packed, PackedLinear)
    with torch.inference_mode():
        tolerance = 1e-5 if dtype is torch.float32 else 0.06
        torch.testing.assert_close(packed(x), plain(x), rtol=tolerance, atol=tolerance)


def test_only_the_named_rows_go_through_the_head() -> None:
    """`rows` picks logits; none at all is fine."""
    model = our_model(reference_model("llama"))

    def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return queries

    with torch.inference_mode():
        tokens, positions = torch.tensor([3, 4, 5]), torch.tensor([0, 1, 2])
        whole = model.forward(tokens, positions, attend)
        some = model.forward(tokens, positions, attend, torch.tensor([2, 0]))
        none = model.forward(tokens, positions, attend, torch.empty(0, dtype=torch.int64))
    torch.testing.assert_close(some, whole[[2, 0]])
    assert none.shape == (0, 131)


def changed(without: str = "", **extra: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    weights = dict(reference_model("llama").state_dict())
    weights.pop(without, None)
    weights.update({name.replace("__", "."): tensor for name, tensor in extra.items()})
    return iter(weights.items())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            lambda: changed("model.layers.1.self_attn.k_proj.weight"),
            "The checkpoint lacks model.layers.1.self_attn.k_proj.weight.",
        ),
        (lambda: changed("lm_head.weight"), "The checkpoint lacks lm_head.weight."),
        (lambda: iter(()), "The checkpoint lacks model.embed_tokens.weight, model.layers.0.input_layernorm.weight"),
        (
            lambda: changed(model__norm__weight=torch.ones(63)),
            "The tensor model.norm.weight has the shape [63]; the config asks for [64].",
        ),
        (
            lambda: changed(model__layers__0__self_attn__q_proj__bias=torch.ones(64)),
            "tensors that the config leaves no place for: model.layers.0.self_attn.q_proj.bias.",
        ),
        (
            lambda: iter([*changed(), ("model.norm.weight", torch.ones(64))]),
            "The tensor model.norm.weight comes twice.",
        ),
    ],
)
def test_bad_weights_are_named(weights: Any, message: str) -> None:
    """Missing, wrongly shaped, unknown and doubled tensors raise ModelLoadError with their name."""
    spec = spec_of(reference_model("llama").config)
    with pytest.raises(ModelLoadError) as error:
        build_model(spec, weights(), dtype=torch.float32)
    assert message in str(error.value)


def test_a_long_list_of_missing_tensors_is_cut() -> None:
    """Four names and a count."""
    spec = spec_of(reference_model("llama").config)
    with pytest.raises(ModelLoadError, match=r"and 26 more\.$"):
        build_model(spec, [], dtype=torch.float32)


def test_tensors_that_follow_from_the_config_are_ignored() -> None:
    """Old checkpoints carry rotary frequencies, tied ones a copy of the embedding."""
    reference = reference_model("llama", tie_word_embeddings=True)
    weights = dict(reference.state_dict())
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    weights["rope_freqs.weight"] = torch.ones(8)
    assert "lm_head.weight" in weights
    model = build_model(spec_of(reference.config), weights.items(), dtype=torch.float32, pack=False)
    assert isinstance(model.head, Linear)
    assert model.head.weight is model.embedding


def test_weights_take_the_dtype_asked_for() -> None:
    """A float32 checkpoint becomes bfloat16 on the way in."""
    reference = reference_model("llama")
    model = our_model(reference, dtype=torch.bfloat16, pack=False)
    assert model.embedding.dtype is torch.bfloat16
    assert isinstance(model.layers[0].qkv, Linear)
    assert model.layers[0].qkv.weight.shape == (64 + 2 * 32, 64)
    spec = evolve(spec_of(reference.config), tied_embeddings=True)
    assert build_model(spec, reference.state_dict().items(), dtype=torch.float32).head.weight.shape == (131, 64)
