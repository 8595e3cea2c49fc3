"""Engines whose steps keep their state on the device, here on the CPU: two steps in flight, the answers of torch."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.model.tiny import make_model, write_folder
from triolet.engine import loading
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.params import SamplingParams
from triolet.engine.llm import LLM
from triolet.engine.open import open_engine

MIB = 1 << 20
PROMPTS = ["hello there", "and then the", "a", "the hello and the hello and the hello", "an"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=1, seed=5, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, seed=6, max_tokens=9, logprobs=1),
    SamplingParams(temperature=1, top_k=7, seed=7, max_tokens=15, n=2, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=10, repetition_penalty=1.3, ignore_eos=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with two kinds of layers: some see everything, some a window."""
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2"
    window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    write_folder(folder, make_model("qwen2", num_hidden_layers=3, **window))
    return folder


def settings(folder: Path, **fields: Any) -> dict[str, Any]:
    return {"model": str(folder), "kv_cache_memory": MIB, "dtype": "float32", "attention_backend": "torch", **fields}


def answers(folder: Path, **fields: Any) -> list[list[tuple[int, ...]]]:
    with LLM(progress=False, **settings(folder, **fields)) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, progress=False)
        return [[choice.token_ids for choice in output.choices] for output in outputs]


@pytest.mark.parametrize(
    "fields",
    [{}, {"max_num_batched_tokens": 8, "max_num_seqs": 8}, {"kv_cache_memory": MIB // 4, "max_model_len": 128}],
)
def test_an_engine_that_is_ahead_answers_as_one_that_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Greedy, drawn, with log-probabilities, forked and penalised, with chunked prompts and with few blocks."""
    expected = answers(folder, **fields)
    monkeypatch.setattr(loading, "runs_ahead", lambda device_type, backend: True)
    for depth in (1, 2):
        assert answers(folder, max_steps_in_flight=depth, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"quantization": "fp8"},
            "--quantization fp8 needs an NVIDIA GPU of compute capability 9.0 or later (Hopper), but the model runs on "
            "cpu; a CPU has int8 and int4.",
        ),
        (
            {"kv_cache_dtype": "fp8"},
            "--kv-cache-dtype fp8 needs --attention-backend triton, on an NVIDIA GPU; here torch attends, on cpu.",
        ),
    ],
)
async def test_what_a_cpu_cannot_do_is_said(folder: Path, fields: dict[str, Any], message: str) -> None:
    """The flag, what it needs, and what there is instead."""
    with pytest.raises(ConfigurationError) as caught:
        await open_engine(EngineConfig(**settings(folder, **fields))).__aenter__()
    assert caught.value.message == message


async def test_recording_reports_its_progress(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After the weights, so that whoever waits sees that the start gets on."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(loading, "runs_ahead", lambda device_type, backend: True)
    seen: list[tuple[str, int, int | None]] = []
    async with open_engine(EngineConfig(**settings(folder)), progress=lambda *args: seen.append(args)):
        pass
    what, done, total = seen[-1]
    assert (what, done) == ("Recording graphs", total)
