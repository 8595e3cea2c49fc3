"""Engines whose steps the native kernels run: chosen by the composition root, by flags, and equal to torch's."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.model.tiny import make_model, write_folder
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.params import SamplingParams
from triolet.engine.llm import LLM
from triolet.engine.open import open_engine
from triolet.engine.sizing import num_native_threads

MIB = 1 << 20
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["hello there", "and then the", "a", "the hello and the hello and the hello"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with two kinds of layers: some see everything, some a window."""
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2"
    window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    write_folder(folder, make_model("qwen2", num_hidden_layers=3, **window))
    return folder


def answers(folder: Path, **fields: Any) -> list[tuple[int, ...]]:
    settings = {"kv_cache_memory": MIB, "dtype": "float32", "progress": False, **fields}
    with LLM(str(folder), **settings) as llm:
        return [output.token_ids for output in llm.generate(PROMPTS, GREEDY, progress=False)]


@pytest.mark.parametrize("fields", [{}, {"max_num_batched_tokens": 4, "max_num_seqs": 4}, {"block_size": 32}])
def test_native_and_torch_engines_answer_alike(folder: Path, fields: dict[str, Any]) -> None:
    """Greedy, in float32, with chunked prompts and with windows that leave blocks behind."""
    assert answers(folder, attention_backend="native", **fields) == answers(folder, attention_backend="torch", **fields)


@pytest.mark.parametrize("fields", [{"quantization": "int8"}, {"quantization": "int4", "kv_cache_dtype": "int8"}])
def test_fewer_bits_run(folder: Path, fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Every request is answered in full, and the log says what the weights are."""
    caplog.set_level(logging.INFO)
    assert [len(tokens) for tokens in answers(folder, dtype="bfloat16", **fields)] == [12] * 4
    assert f"weights loaded as {fields['quantization']} (" in caplog.text
    assert "for native kernels" in caplog.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"attention_backend": "nonsense"},
            "--attention-backend 'nonsense' is not known; valid names are flash_attn, flashinfer, native, torch",
        ),
        (
            {"quantization": "int8"},
            "--quantization int8 needs the native CPU kernels, but with quantization they compute",
        ),
        ({"attention_backend": "native", "block_size": 8}, "but --block-size 8 is not a multiple of 16."),
        (
            {"attention_backend": "native", "dtype": "float16"},
            "but they do not compute in float16; set --dtype bfloat16.",
        ),
    ],
)
async def test_flags_that_cannot_be_met_say_why(folder: Path, fields: dict[str, Any], message: str) -> None:
    """With the flag, the reason, and the names that are valid."""
    settings: dict[str, Any] = {"model": str(folder), "kv_cache_memory": MIB, "dtype": "float32", **fields}
    with pytest.raises(ConfigurationError) as caught:
        await open_engine(EngineConfig(**settings)).__aenter__()
    assert message in caught.value.message


def test_unknown_formats_list_the_known() -> None:
    """Before anything is loaded; an unknown carrier is refused likewise, and not taken for a thread."""
    known = {
        "quantization": "none, fp8, int8, int4",
        "kv_cache_dtype": "auto, fp8, int8",
        "runner": "thread, process",
    }
    for field, names in known.items():
        flag = field.replace("_", "-")
        with pytest.raises(ConfigurationError, match=f"--{flag} must be one of {names}, not 'awq'"):
            EngineConfig(**{field: "awq"})  # type: ignore[arg-type]


async def test_without_a_compiler_torch_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says how to get the fast kernels; the engine runs."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("CXX", "/nowhere/c++")
    settings: dict[str, Any] = {"model": str(folder), "kv_cache_memory": MIB, "dtype": "float32"}
    async with open_engine(EngineConfig(**settings)) as engine, engine.generate("hello", GREEDY) as stream:
        outputs = [output async for output in stream]
    assert outputs[-1].num_output_tokens == 12
    assert (
        "torch computes the steps; the native kernels, which are faster, are not used: "
        "the compiler that CXX names (/nowhere/c++) does not run" in caplog.text
    )


@pytest.mark.parametrize(
    ("num_cores", "asked", "expected"),
    [(4, "", 4), (4, "2", 2), (4, "3,1", 3), (4, "0", 4), (4, "many", 4), (1, "", 1)],
)
def test_threads_are_all_cores_or_what_omp_num_threads_says(num_cores: int, asked: str, expected: int) -> None:
    """As OpenMP reads the variable: a number, or one for each level."""
    assert num_native_threads(num_cores, asked) == expected
