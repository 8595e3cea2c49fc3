"""What a request can ask of its text and its reports: on the way from the scheduler to the reader."""

from typing import Any

import pytest
import trio.testing

from property_tests.reporting import ReportingMemory, entry
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.repetition import RepetitionDetection
from triolet.engine.open import run_engine

from .simulated import EOS, EchoMemory, simulate
from .test_generate import ask, text_of


class EchoReports(EchoMemory, ReportingMemory):
    """Says its prompt's first line, and reports the log-probabilities of all that asks."""


@pytest.mark.parametrize("stop", ["lo", "l", "lo w"])
async def test_a_stop_string_can_be_shown(stop: str, autojump_clock: trio.testing.MockClock) -> None:
    """`include_stop_str_in_output`: the text ends behind it; the stop reason is the same."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "hello world\n", stop=stop, include_stop_str_in_output=True)
        hidden = await ask(engine, "hello world\n", stop=stop)
    text = "hello world"
    assert text_of(outputs) == text[: text.index(stop) + len(stop)]
    assert text_of(hidden) == text[: text.index(stop)]
    assert [outputs[-1].stop_reason, hidden[-1].stop_reason] == [stop, stop]


async def test_a_stop_token_can_be_shown(autojump_clock: trio.testing.MockClock) -> None:
    """Its text, where that was asked for; it is named beside the tokens either way."""
    async with run_engine(simulate().parts) as engine:
        for include in (False, True):
            outputs = await ask(engine, "hello\n", stop_token_ids=[ord("o")], include_stop_str_in_output=include)
            assert text_of(outputs) == ("hello" if include else "hell")
            assert (outputs[-1].end_token_id, outputs[-1].stop_reason) == (ord("o"), ord("o"))
            assert b"".join(bytes(output.token_ids) for output in outputs) == b"hell"
        outputs = await ask(engine, "hello\n")
    assert (outputs[-1].end_token_id, outputs[-1].stop_reason) == (EOS, None)


async def test_an_answer_that_goes_round_in_circles_ends(autojump_clock: trio.testing.MockClock) -> None:
    """With the finish reason `repetition`; each of n answers by itself."""
    detection = RepetitionDetection(max_pattern_size=2, min_count=3)
    async with run_engine(simulate(max_model_len=128).parts) as engine:
        outputs = await ask(engine, "xabababab\n", repetition_detection=detection, n=2)
    for choice in range(2):
        assert text_of(outputs, choice) == "xababab"
    ends = [output for output in outputs if output.finish_reason is not None]
    assert [(end.finish_reason, end.stop_reason) for end in ends] == [
        (FinishReason.REPETITION, "repetition_detected")
    ] * 2


@pytest.mark.parametrize("n", [1, 2])
async def test_each_token_comes_with_its_logprobs(n: int, autojump_clock: trio.testing.MockClock) -> None:
    """Merged deltas and held-back text keep tokens and log-probabilities side by side; a neighbour gets none."""
    async with run_engine(simulate(runner=EchoReports).parts) as engine:
        async with engine.generate("hello\n", SamplingParams(logprobs=0, n=n, stop=["lox"])) as stream:
            await trio.sleep(3.5)  # the reader is behind
            outputs = [output async for output in stream]
        plain = await ask(engine, "hello\n")
    for choice in range(n):
        tokens = [token for output in outputs if output.choice == choice for token in output.token_ids]
        said = [each for output in outputs if output.choice == choice for each in output.logprobs]
        assert tokens == list(b"hello")
        assert said == [entry(token, 6 + place) for place, token in enumerate(tokens)]
    assert all(len(output.token_ids) == len(output.logprobs) for output in outputs)
    assert outputs[-1].end_logprobs == entry(EOS, 11)
    assert all(output.logprobs == () and output.end_logprobs is None for output in plain)


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 4}, {"num_blocks": 8, "max_model_len": 24}])
async def test_prompt_logprobs_come_once_for_each_position(
    settings: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    """In one chunk, in many, and over preemptions; before the first output; a cached prefix is computed again."""
    simulation = simulate(runner=EchoReports, **settings)
    prompt = b"hello world\n"
    expected = (None, *(entry(token, place) for place, token in enumerate(prompt) if place))
    seen: list[object] = []
    async with run_engine(simulation.parts, check=True) as engine:
        await ask(engine, prompt.decode())

        async def one() -> None:
            async with engine.generate(prompt.decode(), SamplingParams(prompt_logprobs=0)) as stream:
                async for output in stream:
                    assert stream.prompt_logprobs == expected
                    assert output.num_cached_tokens == 0
                seen.append(output.finish_reason)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        assert seen == [FinishReason.STOP] * 3
        async with engine.generate("x", SamplingParams(prompt_logprobs=0, max_tokens=1)) as stream:
            assert stream.prompt_logprobs == ()
    assert simulation.all_blocks_are_back


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"logit_bias": {256: 1}}, "logit_bias"),
        ({"allowed_token_ids": [3, 256]}, "allowed_token_ids"),
        ({"bad_word_token_ids": [[300]]}, "bad_words"),
        ({"bad_words": ["x" * 1025]}, "bad_words"),
        ({"bad_words": ["x" * 8193]}, "bad_words"),
    ],
)
async def test_tokens_that_the_model_does_not_have_are_refused(
    params: dict[str, Any], param: str, autojump_clock: trio.testing.MockClock
) -> None:
    """And bad words of too many tokens; the error names the field."""
    simulation = simulate()
    async with run_engine(simulation.parts) as engine:
        with pytest.raises(InvalidRequest) as caught:
            await ask(engine, "hello\n", **params)
        assert caught.value.param == param
        assert text_of(await ask(engine, "hello\n")) == "hello"


async def test_bad_words_are_resolved_with_and_without_a_space(autojump_clock: trio.testing.MockClock) -> None:
    """A word at the front of a text, and behind a space where that is as many tokens, the first of them another."""
    simulation = simulate()
    async with run_engine(simulation.parts) as engine:
        await ask(engine, "hello\n", bad_words=["ab", " c"])
        sent = [joined for plan in simulation.device.plans for joined in plan.joined]
        assert sent[0].sampling.bad_word_token_ids == ((97, 98), (99,))
