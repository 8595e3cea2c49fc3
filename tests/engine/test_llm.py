"""The synchronous front door, over a simulated engine that takes no time."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from triolet.engine import llm as llm_module
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import EngineDead, InvalidRequest, PromptTooLong
from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.llm import LLM
from triolet.engine.open import run_engine
from triolet.engine.prompt import TokenPrompt

from ..limits import REAL_LIMIT_S
from .simulated import simulate

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def simulated(config: EngineConfig, *, progress: object = None) -> AsyncIterator[Engine]:
    """In the place of open_engine: the echo model."""
    parts = simulate(step_s=0, num_blocks=256, max_num_queued_reqs=config.max_num_queued_reqs).parts
    async with run_engine(parts, check=True) as engine:
        yield engine


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(llm_module, "open_engine", simulated)
    with LLM(progress=False, max_num_queued_reqs=8) as llm:
        yield llm


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    """More prompts than the queue takes are all answered, in their order."""
    prompts = [f"prompt {'x' * (number % 7)}\n" for number in range(50)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0), progress=False)
    assert [output.text for output in outputs] == [prompt.removesuffix("\n") for prompt in prompts]
    assert [output.prompt for output in outputs] == prompts
    assert {output.finish_reason for output in outputs} == {FinishReason.STOP}


@pytest.mark.parametrize(
    "prompts", ["hi\n", ["hi\n"], list(b"hi\n"), [list(b"hi\n")], TokenPrompt(token_ids=b"hi\n"), [tuple(b"hi\n")]]
)
def test_one_prompt_or_a_list_in_each_form(llm: LLM, prompts: object) -> None:
    """A text, token ids, a prompt object, and lists of these."""
    (output,) = llm.generate(prompts, progress=False)  # type: ignore[arg-type]
    assert (output.text, output.prompt_token_ids, output.token_ids) == ("hi", tuple(b"hi\n"), tuple(b"hi"))


def test_no_prompts_no_answers(llm: LLM) -> None:
    """An empty list is answered with an empty list."""
    assert llm.generate([], progress=False) == []


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    """A list of parameters goes with the list of prompts; with n > 1 a prompt has several choices."""
    first, second = llm.generate(
        ["hello\n", "world\n"], [SamplingParams(max_tokens=2), SamplingParams(n=2, stop="r")], progress=False
    )
    assert (first.text, first.finish_reason) == ("he", FinishReason.LENGTH)
    assert [(choice.text, choice.stop_reason) for choice in second.choices] == [("wo", "r"), ("wo", "r")]


def test_parameters_and_prompts_must_match(llm: LLM) -> None:
    """Lists of different lengths are refused, with both lengths."""
    with pytest.raises(InvalidRequest, match="There are 1 prompts and 2 sampling_params"):
        llm.generate(["hi\n"], [SamplingParams()] * 2, progress=False)


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    """Messages go through the chat template."""
    messages = [{"role": "user", "content": "hello"}]
    assert [output.text for output in llm.chat(messages, progress=False)] == ["hello"]
    assert [output.text for output in llm.chat([messages, messages], progress=False)] == ["hello"] * 2


def test_a_prompt_at_fault_ends_the_call_and_is_named(llm: LLM) -> None:
    """The error is the request's own, with a note that says which prompt it was; the engine goes on."""
    with pytest.raises(PromptTooLong) as caught:
        llm.generate(["fine\n", "x" * 64], progress=False)
    assert caught.value.__notes__ == ["This was prompt 1."]
    assert llm.generate("fine\n", progress=False)[0].text == "fine"
    assert llm.stats().num_free_blocks == llm.stats().num_blocks


def test_a_progress_bar_counts_requests(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    """Where standard error is no terminal, nothing is drawn."""
    assert len(llm.generate(["hi\n"] * 3, progress=True)) == 3
    assert capsys.readouterr().err == ""


def test_a_closed_llm_says_so(llm: LLM) -> None:
    """After close a call raises EngineDead; closing again does nothing."""
    llm.close()
    llm.close()
    with pytest.raises(EngineDead, match="The engine has been closed"):
        llm.generate("hi\n", progress=False)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.engine import test_llm
test_llm.llm_module.open_engine = test_llm.simulated
from triolet import LLM
llm = LLM(progress=False)
print(llm.generate("hello\\n")[0].text, flush=True)
{rest}
"""


@contextmanager
def run_script(rest: str) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, if it is still there."""
    code = SCRIPT.format(root=str(ROOT), rest=rest)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_script_that_forgets_to_close_ends_by_itself() -> None:
    """The engine's threads do not keep the process alive, and nothing is printed at its end."""
    with run_script("") as process:
        out, err = process.communicate(timeout=REAL_LIMIT_S)
    assert (out, err, process.returncode) == ("hello\n", "", 0)


def test_ctrl_c_ends_a_script() -> None:
    """An interrupt during a call comes out as KeyboardInterrupt, after the requests have been given back."""
    rest = """
import trio
async def wait(engine):
    async with engine.generate("waiting\\n") as stream:
        print("waiting", flush=True)
        await trio.sleep_forever()
try:
    llm._portal.call(wait)
except KeyboardInterrupt:
    print("interrupted", llm.generate("again\\n")[0].text, flush=True)
"""
    with run_script(rest) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["hello\n", "waiting\n"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=REAL_LIMIT_S)
    assert (out, err, process.returncode) == ("interrupted again\n", "", 0)
