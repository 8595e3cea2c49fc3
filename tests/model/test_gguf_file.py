"""GGUF files: the spec and the weights of the model they were made from, and errors that say what and where."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.model.tiny import gguf_name, make_model, permute, write_folder, write_gguf
from triolet.engine.core.errors import ModelLoadError
from triolet.model.gguf_file import read_gguf
from triolet.model.source import ModelSource, resolve_source
from triolet.model.weights import read_spec, read_weights

Kind = gguf.GGMLQuantizationType


def read(path: Path) -> dict[str, torch.Tensor]:
    source = resolve_source(str(path))
    return dict(read_weights(source, read_spec(source)))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
    ],
)
def test_a_file_gives_the_model_it_was_made_from(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    """The spec that its config.json gives, and each weight bit by bit, rows back in Hugging Face's order."""
    model = make_model(kind, **options)
    write_folder(tmp_path / "hf", model)
    write_gguf(tmp_path / "m.gguf", model)
    ours, theirs = read_spec(resolve_source(str(tmp_path / "m.gguf"))), read_spec(resolve_source(str(tmp_path / "hf")))
    same = [name for name in theirs.__slots__ if not name.startswith("_") and name != "architecture"]
    for name in same:
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name
    expected = {n: t for n, t in model.state_dict().items() if not (ours.tied_embeddings and n == "lm_head.weight")}
    got = read(tmp_path / "m.gguf")
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


WIDENED = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.TQ1_0, Kind.TQ2_0]


@pytest.mark.parametrize("kind", WIDENED, ids=[kind.name for kind in WIDENED])
def test_every_kind_that_gguf_writes_is_read(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """The values are what gguf itself makes of the stored blocks."""
    model = make_model(hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=64)
    write_gguf(tmp_path / "m.gguf", model, kind=kind)
    got = read(tmp_path / "m.gguf")
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"):
        array = model.state_dict()[name].numpy()
        expected = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
        assert torch.equal(got[name].float(), torch.from_numpy(np.array(expected))), name


READ_ONLY = sorted(set(gguf.quants._type_traits) - set(WIDENED))


@pytest.mark.parametrize("kind", READ_ONLY, ids=[kind.name for kind in READ_ONLY])
def test_every_kind_that_gguf_only_reads_is_read(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Random blocks in place of a matrix: gguf's routine gives the values, the shape is the matrix's."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 120, (4, 512 // elements * size), np.uint8)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("output.weight", blocks, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    spec = read_spec(resolve_source(str(write_and_name(tmp_path / "whole.gguf"))))
    with np.errstate(all="ignore"):
        ((name, got),) = read_weights(ModelSource(kind="gguf", path=path, name="m"), spec)
        expected = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    assert (name, got.shape) == ("lm_head.weight", (4, 512))
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())


def write_and_name(path: Path, **options: Any) -> Path:
    write_gguf(path, **options)
    return path


def test_the_built_in_model_equals_gguf_and_its_known_layout(builtin_source: ModelSource) -> None:
    """Every tensor: gguf's own reader and routine, with q and k put into ggml's order again."""
    spec = read_spec(builtin_source)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(builtin_source.path).tensors}
    seen = set()
    for name, ours in read_weights(builtin_source, spec):
        tensor = theirs[gguf_name(name)]
        seen.add(tensor.name)
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        array = ours.numpy()
        if ".q_proj." in name or ".k_proj." in name:
            array = permute(array, spec.num_heads if ".q_proj." in name else spec.num_kv_heads)
        assert np.array_equal(array, expected), name
    assert seen == theirs.keys()


def test_the_built_in_models_spec(builtin_source: ModelSource) -> None:
    """SmolLM2-135M-Instruct, by its card."""
    spec = read_spec(builtin_source)
    assert (spec.architecture, spec.num_layers, spec.hidden_size) == ("LlamaForCausalLM", 30, 576)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (9, 3, 64, 1536)
    assert (spec.vocab_size, spec.max_position_embeddings, spec.tied_embeddings) == (49152, 8192, True)
    assert (spec.rope_theta, spec.rope_parameters) == (100000.0, {})
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"llama.rope.scaling.type": "none"}, {}),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2}),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 16},
        ),
    ],
)
def test_rotary_scaling_in_the_metadata(tmp_path: Path, extra: dict[str, Any], expected: dict[str, Any]) -> None:
    """llama.cpp's keys, new and old, become Hugging Face's fields."""
    path = write_and_name(tmp_path / "m.gguf", extra=extra)
    assert read_spec(resolve_source(str(path))).rope_parameters == expected


def test_rotary_divisors_become_longrope(tmp_path: Path) -> None:
    """Llama 3 files hold the outcome of their scaling as a tensor, which is no weight."""
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_and_name(tmp_path / "m.gguf", extra_tensors={"rope_freqs.weight": divisors})
    rope = read_spec(resolve_source(str(path))).rope_parameters
    assert rope["rope_type"] == "longrope"
    assert rope["short_factor"] == rope["long_factor"] == divisors.tolist()
    assert rope["attention_factor"] == 1.0
    assert "rope_freqs.weight" not in read(path)


def test_an_answer_may_end_at_several_tokens(tmp_path: Path) -> None:
    """The end of a turn counts beside the end of the text."""
    path = write_and_name(tmp_path / "m.gguf", extra={"tokenizer.ggml.eot_token_id": 7})
    assert read_spec(resolve_source(str(path))).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"architecture": "gemma"}, "unknown architecture gemma; known are llama, qwen2, qwen3."),
        ({"extra": {"llama.expert_count": 8}}, "llama.expert_count is 8: mixtures of experts are not supported."),
        ({"extra": {"llama.rope.scaling.type": "su"}}, "llama.rope.scaling.type is 'su'; none, linear and yarn are"),
        ({"leave_out": "token_embd.weight"}, "tensor token_embd.weight is missing."),
        ({"extra": {"general.alignment": 33}}, "general.alignment is 33, not a power of two."),
        (
            {"extra": {"llama.rope.dimension_count": 0}},
            "llama.rope.dimension_count must be a whole number above 0, not 0.",
        ),
        (
            {"model": make_model("qwen2"), "extra": {"qwen2.attention.value_length": 8}},
            "qwen2.attention.value_length differs from the key length, 16.",
        ),
        (
            {"extra_tensors": {"rope_freqs.weight": np.ones(8, np.float16)}},
            "tensor rope_freqs.weight must be stored as 32-bit floats.",
        ),
    ],
)
def test_a_model_that_cannot_be_run_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    """The message names the file and the key or the tensor."""
    path = write_and_name(tmp_path / "m.gguf", **options)
    with pytest.raises(ModelLoadError) as refused:
        read_spec(resolve_source(str(path)))
    assert refused.value.message.startswith(f"{path}: {says}")


def test_a_tensor_that_has_no_place_is_named(tmp_path: Path) -> None:
    """Leaving it out silently would run another model than the file holds."""
    path = write_and_name(tmp_path / "m.gguf", extra_tensors={"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelLoadError, match=r"m\.gguf: tensor blk\.0\.attn_sinks\.weight has no place in a LlamaFor"):
        read(path)


def test_rows_that_are_no_heads_are_named(tmp_path: Path) -> None:
    """The rows of q and k come in pairs for each head."""
    odd = {"blk.0.attn_q.bias": np.ones(60, np.float32)}
    path = write_and_name(tmp_path / "m.gguf", extra_tensors=odd)
    with pytest.raises(ModelLoadError, match=r"tensor blk\.0\.attn_q\.bias has 60 rows, not a multiple of 2 x 4 heads"):
        read(path)


def test_a_kind_that_cannot_be_widened_is_named(tmp_path: Path) -> None:
    """Whole numbers are no weights."""
    path = write_and_name(tmp_path / "m.gguf", extra_tensors={"blk.0.attn_q.bias": np.ones(64, np.int32)})
    with pytest.raises(ModelLoadError, match=r"tensor blk\.0\.attn_q\.bias is stored as I32, which is not read"):
        read(path)


def header(*, version: int = 3, tensors: int = 0, entries: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


ARCH = string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cannot be read as GGUF: cannot mmap an empty file"),
        (b"PK\x03\x04", "not a GGUF file: it begins with b'PK\\x03\\x04', not with b'GGUF'"),
        (b"GGUF\x03", "truncated or damaged: the version ends at byte 8, the file at 5"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "a big-endian GGUF file; only little-endian ones are read"),
        (header(version=1), "GGUF version 1; versions 2 and 3 are read"),
        (header(), "the metadata has no general.architecture"),
        (header(entries=1), "truncated or damaged: a metadata key ends at byte 32, the file at 24"),
        (header(entries=1, rest=string(b"k") + struct.pack("<I", 99)), "damaged: k has the unknown value type 99"),
        (header(entries=1, rest=struct.pack("<Q", 1 << 62)), "truncated or damaged: a metadata key ends at byte"),
        (header(entries=1, rest=string(b"\xff")), "damaged: a metadata key at byte 32 is not UTF-8"),
        (
            header(entries=1, rest=string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 40) + string(b"a")),
            "truncated or damaged: the file ends inside k",
        ),
        (
            header(entries=1, rest=string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 40)),
            "truncated or damaged: k ends at byte",
        ),
        (
            header(entries=1, rest=string(b"k") + struct.pack("<IIQ", 9, 9, 1)),
            "k is an array of value type 9, which is not read",
        ),
        (
            header(entries=1, tensors=1, rest=ARCH + string(b"w") + struct.pack("<I", 77)),
            "damaged: tensor w has 77 dimensions",
        ),
        (
            header(entries=1, tensors=1, rest=ARCH + string(b"w") + struct.pack("<IQIQ", 1, 4, 999, 0)),
            "tensor w has type 999, which is not known",
        ),
        (
            header(entries=1, tensors=1, rest=ARCH + string(b"w") + struct.pack("<IQ", 1, 0)),
            "damaged: tensor w has no elements",
        ),
        (
            header(entries=1, tensors=1, rest=ARCH + string(b"w") + struct.pack("<IQIQ", 1, 33, 2, 0)),
            "tensor w has rows of 33 elements, not a multiple of 32",
        ),
        (
            header(entries=1, tensors=1, rest=ARCH + string(b"w") + struct.pack("<IQIQ", 1, 64, 0, 0)),
            "truncated: tensor w ends at byte 384, the file at ",
        ),
        (
            header(
                entries=1,
                tensors=2,
                rest=ARCH + 2 * (string(b"w") + struct.pack("<IQIQ", 1, 1, 0, 0)) + bytes(200),
            ),
            "a tensor is listed twice",
        ),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, data: bytes, says: str) -> None:
    """Whatever is wrong, the message names the file and what and where."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError) as refused:
        read_gguf(path)
    assert refused.value.message.startswith(f"{path}: {says}")


def cut(data: bytes) -> bytes:
    return data[:-1]


def halve(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [cut, halve])
def test_a_truncated_file_names_a_tensor_before_any_weight_is_read(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """A download that broke off is noticed at the header, not after minutes."""
    path = write_and_name(tmp_path / "m.gguf", tokenizer=False)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelLoadError, match=r"m\.gguf: truncated: tensor \S+ ends at byte \d+, the file at \d+"):
        read_spec(resolve_source(str(path)))


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    """Between naming it and reading it."""
    with pytest.raises(ModelLoadError, match=r"gone\.gguf: cannot be read as GGUF: .*No such file"):
        read_gguf(tmp_path / "gone.gguf")
