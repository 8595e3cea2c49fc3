"""Rotary frequencies are transformers' own, for every scaling type it knows."""

import math
from typing import Any

import pytest
import torch
from attrs import evolve
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tests.model.running import SHAPE, spec_of
from triolet.engine.core.errors import ModelLoadError
from triolet.model.layers.rotary import Rotary, rope_frequencies

PAIRS = 8
TYPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, own ramp": {"factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, not truncated": {"factor": 8.0, "original_max_position_embeddings": 32, "truncate": False},
    "yarn, mscale": {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, attention factor": {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0 + i / 10 for i in range(PAIRS)],
        "long_factor": [2.0 + i for i in range(PAIRS)],
    },
    "longrope, attention factor": {
        "original_max_position_embeddings": 64,
        "attention_factor": 1.1,
        "short_factor": [1.0] * PAIRS,
        "long_factor": [3.0] * PAIRS,
    },
    "longrope, factor from the lengths": {
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * PAIRS,
        "long_factor": [3.0] * PAIRS,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.5},
    "proportional, whole": {},
}


def config_of(name: str, **fields: Any) -> LlamaConfig:
    parameters = {"rope_type": name.split(",")[0], "rope_theta": 20000.0, **TYPES.get(name, {}), **fields}
    return LlamaConfig(**{**SHAPE, "rope_parameters": parameters})


def test_every_type_of_transformers_is_covered() -> None:
    """A type that a newer transformers adds for Llama fails here until it is written."""
    assert {name.split(",")[0] for name in TYPES} == set(ROPE_INIT_FUNCTIONS)


@pytest.mark.parametrize("length", [64, 256, 1000])
@pytest.mark.parametrize("name", TYPES)
def test_frequencies_and_scaling_equal_those_of_transformers(name: str, length: int) -> None:
    """For a longest sequence within and past the original length, bit for bit."""
    config = config_of(name)
    expected, scaling = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, seq_len=length)
    frequencies, factor = rope_frequencies(spec_of(config), max_model_len=length)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(scaling, rel=1e-12)


@pytest.mark.parametrize("name", ["linear", "dynamic", "yarn", "longrope", "llama3"])
def test_a_partial_rotation_has_fewer_pairs(name: str) -> None:
    """`partial_rotary_factor` shrinks the dimension that the exponents count over, as in transformers."""
    fields: dict[str, Any] = {"partial_rotary_factor": 0.5}
    if name == "longrope":
        fields |= {"short_factor": [1.5] * (PAIRS // 2), "long_factor": [2.5] * (PAIRS // 2)}
    config = config_of(name, **fields)
    expected, _ = ROPE_INIT_FUNCTIONS[name](config, seq_len=256)
    frequencies, _ = rope_frequencies(spec_of(config), max_model_len=256)
    assert len(frequencies) == PAIRS // 2
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["default", "yarn", "llama3", "proportional"])
def test_tables_and_rotation_equal_those_of_transformers(name: str, dtype: torch.dtype) -> None:
    """Cosines and sines with their scaling factor, and heads turned by them."""
    config = config_of(name)
    ours, theirs = Rotary(spec_of(config)), LlamaRotaryEmbedding(config)
    positions = torch.tensor([0, 1, 2, 77, 255])
    heads = torch.randn(5, 3, 16, dtype=dtype)
    cos, sin = theirs(heads, positions[None])
    expected, _ = apply_rotary_pos_emb(heads.transpose(0, 1), heads.transpose(0, 1), cos[0], sin[0], unsqueeze_dim=0)
    tables = ours.tables(positions, dtype)
    torch.testing.assert_close(tables[0][:, 0], cos[0], rtol=0, atol=0)
    torch.testing.assert_close(tables[1][:, 0].abs(), sin[0].abs(), rtol=0, atol=0)
    tolerance = 1e-6 if dtype is torch.float32 else 0.04  # transformers rounds each product to bfloat16
    torch.testing.assert_close(ours.rotate(heads, tables), expected.transpose(0, 1), rtol=tolerance, atol=tolerance)


def test_a_partial_rotation_leaves_the_other_dimensions_alone() -> None:
    """Dimensions past the rotary ones come out as they went in; the others turn like a smaller head."""
    spec = spec_of(config_of("default", partial_rotary_factor=0.5))
    rotary, heads = Rotary(spec), torch.randn(4, 2, 16)
    tables = rotary.tables(torch.arange(4), torch.float32)
    turned = rotary.rotate(heads, tables)
    assert rotary.rotary_dim == 8
    assert torch.equal(turned[..., 8:], heads[..., 8:])
    angle = 3 * 1.0  # the first pair turns by one radian per position
    first, second = heads[3, 0, 0], heads[3, 0, 4]
    assert turned[3, 0, 0].item() == pytest.approx(
        (first * math.cos(angle) - second * math.sin(angle)).item(), abs=1e-5
    )


def test_the_old_name_of_the_type_field_is_read() -> None:
    """Configs written before `rope_type` say `type`."""
    spec = spec_of(config_of("linear"))
    parameters = dict(spec.rope_parameters)
    parameters["type"] = parameters.pop("rope_type")
    assert torch.equal(rope_frequencies(evolve(spec, rope_parameters=parameters))[0], rope_frequencies(spec)[0])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "spiral"}, "rope_scaling type 'spiral' is not known; known are default, dynamic"),
        ({"rope_type": "linear"}, "rope_scaling of type 'linear' lacks the field 'factor'"),
        ({"rope_type": "linear", "factor": "two"}, "rope_scaling of type 'linear' has a field of the wrong type"),
        ({"rope_type": "longrope", "short_factor": [1.0, 2.0]}, "short_factor has 2 numbers; the model needs 8"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    """An unknown type, a missing field or a wrong one is a ModelLoadError that says which."""
    spec = evolve(spec_of(config_of("default")), rope_parameters=parameters)
    with pytest.raises(ModelLoadError) as error:
        rope_frequencies(spec)
    assert message in str(error.value)
