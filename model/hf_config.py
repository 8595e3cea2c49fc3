"""Turns a Hugging Face `config.json` (and `generation_config.json`) into a `ModelSpec`.

Imports no torch and no transformers. Absent optional fields get LlamaConfig's defaults. `auto_map` and the like are
ignored: no code that comes with a model is ever run, the architecture's name alone decides.
"""

import json
from pathlib import Path
from typing import Any

from ..engine.core.errors import ModelLoadError
from .architectures import ARCHITECTURES, DEFAULT_HEAD_DIM, ROPE_FIELDS, check_spec
from .fields import Fields
from .spec import ModelSpec

_DTYPES = ("float32", "bfloat16", "float16")


def spec_of_folder(folder: Path) -> ModelSpec:
    """The shape of the model in `folder`. Raises ModelLoadError."""
    fields = _read(folder / "config.json")
    architecture = _architecture(fields)
    if fields.raw("quantization_config") is not None:
        method = fields.raw("quantization_config")
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise fields.fail(
            "quantization_config", f"({method}) is not supported; use the original weights or a GGUF file"
        )
    if (activation := fields.raw("hidden_act")) not in (None, "silu"):
        raise fields.fail("hidden_act", f"is {activation!r}; only silu is supported")
    num_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    max_length = fields.count("max_position_embeddings", 2048)
    theta, rope, partial = _rope(fields, max_length)
    bos = fields.token_ids("bos_token_id")
    spec = ModelSpec(
        architecture=architecture,
        num_layers=fields.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=_head_dim(fields, architecture, hidden_size, num_heads),
        vocab_size=fields.count("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position_embeddings=max_length,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        rope_theta=theta,
        rope_parameters=rope,
        partial_rotary_factor=partial,
        torch_dtype=_dtype(fields),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_eos(folder, fields),
        **ARCHITECTURES[architecture](fields),
    )
    return check_spec(fields, spec)


def _read(path: Path) -> Fields:
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ModelLoadError(f"{path}: not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object, not {type(values).__name__}.")
    return Fields(path, values)


def _architecture(fields: Fields) -> str:
    named = fields.raw("architectures")
    if not isinstance(named, list) or not named:
        raise fields.fail("architectures", "must list the architecture")
    for name in named:
        if name in ARCHITECTURES:
            return str(name)
    raise ModelLoadError(f"{fields.file}: unknown architecture {named[0]}; known are {', '.join(ARCHITECTURES)}.")


def _head_dim(fields: Fields, architecture: str, hidden_size: int, num_heads: int) -> int:
    if fields.raw("head_dim") is not None:
        return fields.count("head_dim")
    if architecture in DEFAULT_HEAD_DIM:
        return DEFAULT_HEAD_DIM[architecture]
    if hidden_size % num_heads:
        raise fields.fail("num_attention_heads", f"({num_heads}) does not divide hidden_size ({hidden_size})")
    return hidden_size // num_heads


def _rope(fields: Fields, max_length: int) -> tuple[float, dict[str, Any], float]:
    """The base, the scaling and the rotated share of a head: in `rope_parameters`, or as older files have it."""
    name = "rope_parameters" if fields.raw("rope_parameters") is not None else "rope_scaling"
    given = fields.raw(name)
    if not isinstance(given, dict | None):
        raise fields.fail(name, f"must be an object, not {given!r}")
    top = {key: fields.raw(key) for key in ("rope_theta", "partial_rotary_factor") if fields.raw(key) is not None}
    values = {**top, **{key: value for key, value in (given or {}).items() if value is not None}}
    if nested := [key for key, value in values.items() if isinstance(value, dict)]:
        raise fields.fail(f"{name}.{nested[0]}", "sets rotary positions by kind of layer, which is not supported")
    old_kind = values.pop("type", "default")
    kind = values.pop("rope_type", old_kind)
    if kind not in ROPE_FIELDS:
        raise fields.fail(f"{name}.rope_type", f"is {kind!r}; known are {', '.join(ROPE_FIELDS)}")
    rope = Fields(fields.file, values, "")
    theta, partial = rope.number("rope_theta", 10000.0), rope.number("partial_rotary_factor", 1.0)
    if kind == "default":
        return theta, {}, partial
    own = {key: value for key, value in values.items() if key not in top and key != "rope_theta"}
    own.pop("partial_rotary_factor", None)
    if "original_max_position_embeddings" in ROPE_FIELDS[kind]:
        before = fields.raw("original_max_position_embeddings")
        own["original_max_position_embeddings"] = before or own.get("original_max_position_embeddings", max_length)
    if kind in ("yarn", "longrope") and "factor" not in own:
        own["factor"] = max_length / own["original_max_position_embeddings"]
    _check_rope(Fields(fields.file, {f"{name}.{key}": value for key, value in own.items()}, f"{name}."), kind)
    return theta, {"rope_type": kind, **own}, partial


def _check_rope(fields: Fields, kind: str) -> None:
    """Each required field is a number above 0, or a list of them for the factors per frequency."""
    for name in ROPE_FIELDS[kind]:
        value = fields.raw(name)
        if name not in ("short_factor", "long_factor"):
            fields.number(name)
        elif not isinstance(value, list) or not all(isinstance(v, int | float) and v > 0 for v in value):
            raise fields.fail(name, "must be a list of numbers above 0")


def _dtype(fields: Fields) -> str:
    """transformers 5 writes `dtype`, older ones `torch_dtype`; weights of another type are widened or rounded."""
    named = fields.raw("dtype") or fields.raw("torch_dtype")
    return named if named in _DTYPES else "bfloat16"


def _eos(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Where an answer ends: generation_config.json knows better, as in transformers."""
    path = folder / "generation_config.json"
    ends = _read(path).token_ids("eos_token_id") if path.is_file() else ()
    return ends or fields.token_ids("eos_token_id")
