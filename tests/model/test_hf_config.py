"""config.json becomes a spec: old and new spellings, defaults, and errors that name the field."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from triolet.engine.core.errors import ModelLoadError
from triolet.model.source import resolve_source
from triolet.model.spec import ModelSpec
from triolet.model.weights import read_spec

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def read(folder: Path, *, generation: dict[str, Any] | None = None, **edits: Any) -> ModelSpec:
    """The spec of a folder with this config; None takes a field out."""
    config = {key: value for key, value in {**PLAIN, **edits}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_spec(resolve_source(str(folder)))


def test_absent_fields_get_the_defaults_of_llama(tmp_path: Path) -> None:
    """A config with the sizes alone."""
    theirs = LlamaConfig(**{key: value for key, value in PLAIN.items() if key != "architectures"})
    spec = read(tmp_path)
    assert spec == ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=4,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=theirs.num_key_value_heads,
        head_dim=theirs.head_dim,
        vocab_size=100,
        rms_norm_eps=theirs.rms_norm_eps,
        max_position_embeddings=theirs.max_position_embeddings,
        tied_embeddings=False,
        rope_theta=theirs.rope_parameters["rope_theta"],
        torch_dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("config_class", "options", "expected"),
    [
        (LlamaConfig, {"attention_bias": True}, {"attention_bias": True, "output_bias": True}),
        (LlamaConfig, {"mlp_bias": True, "tie_word_embeddings": True}, {"mlp_bias": True, "tied_embeddings": True}),
        (MistralConfig, {}, {"sliding_window": 4096, "sliding_layers": (0, 1, 2, 3)}),
        (MistralConfig, {"sliding_window": None}, {"sliding_window": None, "sliding_layers": ()}),
        (Qwen2Config, {}, {"attention_bias": True, "output_bias": False, "qk_norm": False}),
        (
            Qwen2Config,
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3},
            {"sliding_window": 32, "sliding_layers": (3,)},
        ),
        (Qwen2Config, {"use_sliding_window": False, "sliding_window": 32}, {"sliding_window": None}),
        (Qwen3Config, {}, {"attention_bias": False, "qk_norm": True, "head_dim": 128}),
        (Qwen3Config, {"head_dim": 32}, {"head_dim": 32}),
        (LlamaConfig, {"dtype": "float16"}, {"torch_dtype": "float16"}),
    ],
)
def test_what_transformers_saves_is_read(
    tmp_path: Path, config_class: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Each architecture's own fields, from the file that its configuration writes."""
    sizes = {key: value for key, value in PLAIN.items() if key != "architectures"} | {"num_key_value_heads": 2}
    name = config_class.__name__.replace("Config", "ForCausalLM")
    config_class(**{**sizes, **options}, architectures=[name]).save_pretrained(tmp_path)
    spec = read_spec(resolve_source(str(tmp_path)))
    assert spec.architecture == name
    assert {key: getattr(spec, key) for key in expected} == expected


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("edits", "theta", "expected"),
    [
        ({"rope_theta": 5e5}, 5e5, {}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, {}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
            5e5,
            {"rope_type": "linear", "factor": 2},
        ),
        ({"rope_theta": 5e5, "rope_scaling": YARN}, 5e5, YARN),
        ({"rope_parameters": {"rope_theta": 5e5, **YARN}}, 5e5, YARN),
        ({"rope_theta": 3.0, "rope_parameters": {"rope_theta": 5e5}}, 5e5, {}),
        (
            {"rope_scaling": {**YARN, "original_max_position_embeddings": None}, "max_position_embeddings": 256},
            1e4,
            {**YARN, "original_max_position_embeddings": 256},
        ),
        ({"rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": 512}, 1e4, {**YARN, "factor": 8.0}),
        (
            {"rope_scaling": YARN, "original_max_position_embeddings": 32},
            1e4,
            {**YARN, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rotary_fields_old_and_new(tmp_path: Path, edits: dict[str, Any], theta: float, expected: Any) -> None:
    """`rope_parameters`, or `rope_theta` with `rope_scaling`; `type` or `rope_type`."""
    spec = read(tmp_path, **edits)
    assert spec.rope_theta == theta
    assert spec.rope_parameters == expected


def test_a_share_of_the_head_is_rotated(tmp_path: Path) -> None:
    """partial_rotary_factor stands at the top or among the rope parameters."""
    assert read(tmp_path, partial_rotary_factor=0.5).partial_rotary_factor == 0.5
    assert read(tmp_path, rope_parameters={"partial_rotary_factor": 0.25}).partial_rotary_factor == 0.25


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, {"eos_token_id": [7, 8]}, (7, 8)),
        (2, {}, (2,)),
        (None, None, ()),
        ([2, 100], None, (2,)),
    ],
)
def test_where_an_answer_ends(tmp_path: Path, config: Any, generation: Any, expected: tuple[int, ...]) -> None:
    """generation_config.json goes before config.json; each has an id or a list. The vocabulary has 100 tokens."""
    assert read(tmp_path, eos_token_id=config, generation=generation).eos_token_ids == expected


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    """auto_map names a module that would leave a trace; the architecture's name alone decides."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    spec = read(tmp_path, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    assert spec.architecture == "LlamaForCausalLM"
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "unknown architecture GPT2LMHeadModel; known are LlamaForCausalLM, Mis",
        ),
        ({"architectures": None}, "architectures must list the architecture"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number above 0, not '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number above 0, not 0"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number above 0, not True"),
        ({"num_attention_heads": 5}, "num_attention_heads (5) does not divide hidden_size (64)"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads evenly"),
        ({"head_dim": 15}, "a head size of 15 is odd"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a number above 0, not -1"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu is supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config (gptq) is not supported"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_scaling.rope_type is 'mrope'; known are default, "),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor must be a number above 0, not '2'"),
        ({"rope_parameters": "yarn"}, "rope_parameters must be an object, not 'yarn'"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": 2}},
            "rope_scaling.long_factor must be a list of numbers above 0",
        ),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor is 2.0, not above 0 and at most 1"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them, not '</s>'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters.full_attention sets rotary positions by kind of layer, which is not supported",
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": "1",
            },
            "max_window_layers must be a whole number, not '1'",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 8, "layer_types": []},
            "layer_types must list 4 layers",
        ),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_by_field(tmp_path: Path, edits: dict[str, Any], says: str) -> None:
    """The message names the file and the field."""
    with pytest.raises(ModelLoadError) as refused:
        read(tmp_path, **edits)
    assert refused.value.message.startswith(f"{tmp_path / 'config.json'}: {says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON: Expecting"), ("[]", "must hold a JSON object, not list"), ("\xff", "not JSON: ")],
)
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Cut off, of another shape, or not even text."""
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelLoadError, match=r"config\.json: ") as refused:
        read_spec(resolve_source(str(tmp_path)))
    assert says in refused.value.message
