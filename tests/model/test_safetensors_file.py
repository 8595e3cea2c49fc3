"""safetensors: the weights of the model that was saved, mapped, whole or in shards; and what is said of damage."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.model.tiny import make_model, write_folder
from triolet.engine.core.errors import ModelLoadError
from triolet.model.source import resolve_source
from triolet.model.weights import read_spec, read_weights

INDEX = "model.safetensors.index.json"


def read(folder: Path) -> dict[str, torch.Tensor]:
    source = resolve_source(str(folder))
    return dict(read_weights(source, read_spec(source)))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder whose weights lie in several files."""
    write_folder(tmp_path / "m", shard="60KB", tokenizer=False)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    return tmp_path / "m"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A folder whose weights lie in one file."""
    write_folder(tmp_path / "m", tokenizer=False)
    return tmp_path / "m"


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        read(folder)
    assert "\n" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize("shard", ["1GB", "60KB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_weight_equals_the_models(tmp_path: Path, shard: str, dtype: torch.dtype) -> None:
    """Bit by bit and in the dtype of the file, from one file or from several."""
    model = make_model().to(dtype)
    write_folder(tmp_path, model, shard=shard, tokenizer=False)
    got = read(tmp_path)
    assert got.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert got[name].dtype == dtype
        assert torch.equal(got[name], tensor), name


def test_a_tied_head_is_left_out(tmp_path: Path) -> None:
    """Some checkpoints save it all the same; the embedding matrix stands for it."""
    model = write_folder(tmp_path, make_model(tie_word_embeddings=True), tokenizer=False)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    assert "lm_head.weight" in state
    assert read(tmp_path).keys() == state.keys() - {"lm_head.weight"}


def test_old_rotary_buffers_are_left_out(single: Path) -> None:
    """They follow from the config."""
    state = {**read(single), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file({name: tensor.clone() for name, tensor in state.items()}, single / "model.safetensors")
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in read(single)


def test_weights_are_mapped_and_not_copied(single: Path) -> None:
    """Reading one tensor twice gives the same memory; writing to it never reaches the file."""
    before = (single / "model.safetensors").read_bytes()
    weights = read(single)
    weights["model.norm.weight"].zero_()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("model.safetensors")]
    start, end = (int(bound, 16) for bound in maps[-1].split()[0].split("-"))
    assert all(start <= tensor.data_ptr() < end for tensor in weights.values())
    assert (single / "model.safetensors").read_bytes() == before


def test_one_file_of_another_name_is_enough(single: Path) -> None:
    """As in folders that were put together by hand."""
    (single / "model.safetensors").rename(single / "weights.safetensors")
    assert "model.norm.weight" in read(single)


def test_no_weights_at_all(single: Path) -> None:
    """A folder of configuration only."""
    (single / "model.safetensors").unlink()
    assert refusal(single) == f"{single}: no weights: there is neither model.safetensors nor {INDEX}."


def test_pickled_weights_are_refused(single: Path) -> None:
    """They are never opened; the message says why and what to do."""
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    said = refusal(single)
    assert said.startswith(f"{single / 'pytorch_model.bin'}: pickled weights are refused, because reading them can run")
    assert "convert to safetensors" in said


def test_shards_without_an_index(sharded: Path) -> None:
    """Which file holds what cannot be guessed when one may be missing."""
    (sharded / INDEX).unlink()
    assert f"safetensors files, but no {INDEX} to say what each holds" in refusal(sharded)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    """Before any weight is read."""
    gone = sorted(sharded.glob("*.safetensors"))[-1]
    gone.unlink()
    assert refusal(sharded) == f"{gone}: missing, though {INDEX} places tensors in it."


def test_a_tensor_that_the_index_names_and_no_file_holds(sharded: Path) -> None:
    """The message names the tensor and the file it should be in."""
    index = json.loads((sharded / INDEX).read_text())
    file = index["weight_map"]["model.norm.weight"]
    index["weight_map"]["model.layers.9.gone.weight"] = file
    (sharded / INDEX).write_text(json.dumps(index))
    said = f"{sharded / file}: tensor model.layers.9.gone.weight is missing, though {INDEX} places it here."
    assert refusal(sharded) == said


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", "model.bin", 7])
def test_an_index_may_not_point_elsewhere(sharded: Path, file: object) -> None:
    """Only at safetensors files beside it."""
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"w": file}}))
    said = refusal(sharded)
    assert said.startswith(f"{sharded / INDEX}: ")
    assert "is not the name of a safetensors file beside it" in said or "not an index" in said


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"w": []}}'])
def test_an_index_that_is_none(sharded: Path, text: str) -> None:
    """Cut off, or of another shape."""
    (sharded / INDEX).write_text(text)
    assert refusal(sharded).startswith(f"{sharded / INDEX}: not an index of safetensors files (")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x10\x00",
        struct.pack("<Q", 1 << 50) + b"{}",
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        struct.pack("<Q", 2) + b"[]",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
)
def test_a_header_of_garbage(single: Path, data: bytes) -> None:
    """Empty, cut, absurd, or a git-lfs pointer in place of the file."""
    (single / "model.safetensors").write_bytes(data)
    assert refusal(single).startswith(f"{single / 'model.safetensors'}: damaged or truncated safetensors file: ")


@pytest.mark.parametrize("keep", [-1, -1000])
def test_a_truncated_file(single: Path, keep: int) -> None:
    """A download that broke off is noticed before its weights are used."""
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(single).startswith(f"{path}: damaged or truncated safetensors file: ")


def test_whole_numbers_are_no_weights(single: Path) -> None:
    """Packed formats would otherwise be taken for values."""
    state = {name: tensor.clone() for name, tensor in read(single).items()}
    save_file({**state, "model.norm.weight": torch.ones(64, dtype=torch.int8)}, single / "model.safetensors")
    assert "tensor model.norm.weight holds torch.int8; only floating types are read" in refusal(single)
