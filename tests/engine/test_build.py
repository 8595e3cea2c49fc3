"""From a configuration to a running engine, over tiny models on disk; and what stops an engine from starting."""

import logging
import os
import signal
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.model.tiny import write_folder
from triolet.engine import build as build_module
from triolet.engine import open as open_module
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import ConfigurationError, ModelLoadError, StartError
from triolet.engine.core.params import SamplingParams
from triolet.engine.device_process import ProcessDevice
from triolet.engine.llm import LLM
from triolet.engine.open import open_engine
from triolet.engine.prompt import ChatPrompt
from triolet.engine.sizing import kv_groups, num_compute_threads
from triolet.kvcache.group import KVGroup

MIB = 1 << 20
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of 512 positions."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    write_folder(folder)
    return folder


def configuration(folder: Path, **fields: object) -> EngineConfig:
    settings: dict[str, Any] = {"model": str(folder), "kv_cache_memory": MIB, "dtype": "float32", **fields}
    return EngineConfig(**settings)


async def test_a_model_on_disk_answers(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The engine knows its model's name and length, answers the same again, and says its sizes in the log."""
    caplog.set_level(logging.INFO)
    seen: list[tuple[str, int, int | None]] = []
    async with open_engine(configuration(folder), progress=lambda *args: seen.append(args)) as engine:
        assert (engine.model_name, engine.max_model_len) == ("tiny-llama", 512)
        texts = []
        for _ in range(2):
            async with engine.generate("hello there", GREEDY) as stream:
                outputs = [output async for output in stream]
            texts.append("".join(output.text for output in outputs))
            assert outputs[-1].num_output_tokens == 8
        assert texts[0] == texts[1]
        assert engine.stats().num_free_blocks == engine.stats().num_blocks == 128
    what, done, total = seen[-1]
    stored = (folder / "model.safetensors").stat().st_size
    assert (what, total) == ("Loading weights", stored)
    assert 0 < done <= stored
    for line in (
        "model tiny-llama: LlamaForCausalLM, 2 layers, 512 tokens",
        "weights loaded as float32",
        "KV cache: 128 blocks of 16 tokens and 8192 bytes, 2048 tokens in 1 MiB; holds at most 4 sequences of 512",
    ):
        assert line in caplog.text


async def test_the_memory_that_nobody_asked_for_is_explained(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --kv-cache-memory the log says how much was free and what the KV cache gets of it."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("triolet.model.memory.free_memory", lambda: 400 * MIB)
    async with open_engine(configuration(folder, kv_cache_memory=None)) as engine:
        assert engine.stats().num_blocks == 100 * 128
    assert "CPU memory: 0.39 GiB free beside the weights, one part in 4 of it" in caplog.text
    assert "at most 4 GiB = 0.10 GiB for the KV cache" in caplog.text


async def test_a_conversation_goes_through_the_models_template(folder: Path) -> None:
    """Messages are rendered and tokenized with the model's own tokenizer."""
    prompt = ChatPrompt(messages=[{"role": "user", "content": "hello"}])
    async with open_engine(configuration(folder)) as engine:
        rendered = engine.tokenizer.decode(await engine.tokenizer.encode(prompt), skip_special_tokens=False)
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_llm_loads_and_answers(folder: Path) -> None:
    """The synchronous door over the same model: one batch, the same answers as one by one."""
    prompts = ["hello", "and then the", "a"]
    with LLM(str(folder), kv_cache_memory=MIB, dtype="float32", progress=False) as llm:
        batch = llm.generate(prompts, GREEDY, progress=False)
        alone = [llm.generate(prompt, GREEDY, progress=False)[0] for prompt in prompts]
    assert [output.token_ids for output in batch] == [output.token_ids for output in alone]


async def test_a_runner_process_gives_the_same_answers_and_may_be_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model behind the other carrier: token for token, also when it is killed in the middle of an answer."""
    devices: list[ProcessDevice] = []
    make_device = open_module.make_device

    def note(*args: Any) -> Any:
        devices.append(make_device(*args))
        return devices[-1]

    params = attrs.evolve(GREEDY, temperature=1, seed=7, max_tokens=200)
    async with open_engine(configuration(folder)) as engine, engine.generate("hello there", params) as stream:
        expected = [token async for output in stream for token in output.token_ids]
    monkeypatch.setattr(open_module, "make_device", note)
    async with open_engine(configuration(folder, runner="process")) as engine:
        pid = devices[0].pid
        assert pid is not None
        async with engine.generate("hello there", params) as stream:
            given = list((await anext(stream)).token_ids)
            os.kill(pid, signal.SIGKILL)
            async for output in stream:
                given += output.token_ids
        assert given == expected
        assert engine.stats().runner_restarts == 1


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"max_model_len": 513}, ConfigurationError, "--max-model-len is 513, but the model was made for at most 512"),
        ({"kv_cache_memory": 1000}, ConfigurationError, "Raise --kv-cache-memory to at least 262144 bytes, or lower"),
        ({"attention_backend": "nonsense"}, ConfigurationError, "nonsense"),
        ({"model": "/nowhere/at/all"}, ModelLoadError, "/nowhere/at/all does not exist"),
    ],
)
async def test_what_cannot_start_says_why(
    folder: Path, fields: dict[str, object], error: type[StartError], message: str
) -> None:
    """The error is itself, not a group, and names the flag or the file."""
    with pytest.raises(error) as caught:
        await open_engine(configuration(folder, **fields)).__aenter__()
    assert message in caught.value.message


async def test_what_a_runner_process_cannot_start_with_says_why(folder: Path) -> None:
    """The error has crossed, and is the same."""
    with pytest.raises(ConfigurationError, match="Raise --kv-cache-memory to at least 262144 bytes, or lower"):
        await open_engine(configuration(folder, runner="process", kv_cache_memory=1000)).__aenter__()


def test_llm_that_cannot_start_says_why() -> None:
    """The constructor raises the same errors."""
    with pytest.raises(ModelLoadError, match="/nowhere/at/all does not exist"):
        LLM("/nowhere/at/all", progress=False)


async def test_a_cancelled_start_ends_at_the_next_tensor(folder: Path) -> None:
    """Loading that is cancelled stops, and leaves no thread behind that would keep the scope."""
    with trio.CancelScope() as scope:

        def progress(what: str, done: int, total: int | None) -> None:
            if what == "Loading weights":
                trio.from_thread.run_sync(scope.cancel)

        async with open_engine(configuration(folder), progress=progress):
            raise AssertionError("it was cancelled while loading")
    assert scope.cancelled_caught


async def test_a_tokenizer_that_cannot_be_loaded_stops_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizer and weights load at the same time; the error of either is the error."""

    def broken(source: object, chat_template: str | None) -> None:
        raise ModelLoadError("tokenizer.json is damaged")

    monkeypatch.setattr(build_module, "_load_tokenizer", broken)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is damaged"):
        await open_engine(configuration(folder)).__aenter__()


def test_layers_are_grouped_by_what_they_see() -> None:
    """Full layers share a group, sliding ones another; a model of one kind has one."""

    class Spec:
        num_layers = 4
        sliding_window: int | None = 8
        sliding_layers: tuple[int, ...] = (1, 3)

    spec = Spec()
    assert kv_groups(spec) == ((KVGroup(), KVGroup(sliding_window=8)), (0, 1, 0, 1))  # type: ignore[arg-type]
    spec.sliding_layers = ()
    assert kv_groups(spec) == ((KVGroup(),), (0, 0, 0, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_cores", "default", "expected"), [(1, 1, 1), (2, 2, 1), (8, 4, 4), (8, 8, 7), (4, 1, 1)])
def test_a_core_is_left_to_the_event_loop(num_cores: int, default: int, expected: int) -> None:
    """Torch computes with its default number of threads, and never with all the cores."""
    assert num_compute_threads(num_cores, default) == expected
