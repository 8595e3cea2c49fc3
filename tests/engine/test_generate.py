"""A request's way through the engine: text, ends, counts, refusals, on the simulated device."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from triolet.engine.core.errors import InvalidRequest, Overloaded, PromptTooLong, RequestFailed, TrioletError
from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine
from triolet.engine.prompt import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from triolet.engine.stream import Output

from .simulated import ByteDecoder, ByteTokenizer, simulate


async def ask(engine: Engine, prompt: Prompt | str | Sequence[int], **params: object) -> list[Output]:
    """Every output of one request."""
    async with engine.generate(prompt, SamplingParams(**params)) as stream:
        return [output async for output in stream]


def text_of(outputs: list[Output], choice: int = 0) -> str:
    return "".join(output.text for output in outputs if output.choice == choice)


async def test_an_answer_comes_token_by_token_and_ends_once(autojump_clock: trio.testing.MockClock) -> None:
    """A reader that keeps up gets one output per token; the last one says how it ended, and counts."""
    simulation = simulate()
    async with run_engine(simulation.parts, check=True) as engine:
        outputs = await ask(engine, "hello\n")
    assert [output.text for output in outputs] == ["h", "e", "l", "l", "o", ""]
    assert [output.finish_reason for output in outputs] == [None] * 5 + [FinishReason.STOP]
    last = outputs[-1]
    assert (last.num_prompt_tokens, last.num_output_tokens, last.stop_reason) == (6, 6, None)
    assert simulation.all_blocks_are_back


@pytest.mark.parametrize(
    "prompt",
    [
        "hello\n",
        list(b"hello\n"),
        TextPrompt(text="hello\n"),
        TokenPrompt(token_ids=list(b"hello\n")),
        ChatPrompt(messages=[{"role": "user", "content": "hello"}]),
    ],
)
async def test_a_prompt_has_three_forms(prompt: Prompt, autojump_clock: trio.testing.MockClock) -> None:
    """A text, token ids and a conversation all lead to the same answer."""
    async with run_engine(simulate().parts) as engine, engine.generate(prompt) as stream:
        assert (stream.prompt_token_ids, stream.num_prompt_tokens) == (tuple(b"hello\n"), 6)
        assert "".join([output.text async for output in stream]) == "hello"


async def test_max_tokens_ends_with_length(autojump_clock: trio.testing.MockClock) -> None:
    """The answer stops after max_tokens tokens."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "hello\n", max_tokens=3)
    assert text_of(outputs) == "hel"
    assert (outputs[-1].finish_reason, outputs[-1].num_output_tokens) == (FinishReason.LENGTH, 3)


async def test_the_models_length_ends_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    """Without max_tokens, or with too many, prompt and answer together fill the model's length."""
    async with run_engine(simulate(max_model_len=8).parts) as engine:
        for max_tokens in (None, 5):
            outputs = await ask(engine, "hello\n", max_tokens=max_tokens)
            assert (text_of(outputs), outputs[-1].finish_reason) == ("he", FinishReason.LENGTH)


async def test_a_stop_token_ends_an_answer_and_is_named(autojump_clock: trio.testing.MockClock) -> None:
    """The stop token is the stop reason, and no part of the text or the tokens."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "hello\n", stop_token_ids=[ord("l")])
    assert text_of(outputs) == "he"
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, ord("l"))
    assert sum((output.token_ids for output in outputs), ()) == tuple(b"he")


async def test_a_stop_string_over_several_tokens_never_shows(autojump_clock: trio.testing.MockClock) -> None:
    """What may become the stop string is held back; it ends the answer and is the stop reason; the blocks are back."""
    simulation = simulate()
    async with run_engine(simulation.parts) as engine:
        async with engine.generate("one two three\n", SamplingParams(stop=["o th", "xyz"])) as stream:
            shown = ""
            async for output in stream:
                shown += output.text
                assert "one tw".startswith(shown)
                if output.finish_reason is not None:
                    assert simulation.all_blocks_are_back
        assert shown == "one tw"
        assert (output.finish_reason, output.stop_reason, output.num_output_tokens) == ("stop", "o th", 10)
    assert len(simulation.device.plans) <= 11, "at most the step in flight is wasted"


async def test_held_back_text_is_shown_when_the_answer_ends(autojump_clock: trio.testing.MockClock) -> None:
    """The beginning of a stop string at the end of an answer was none."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "one two\n", stop=["two!"])
    assert (text_of(outputs), outputs[-1].finish_reason, outputs[-1].stop_reason) == ("one two", "stop", None)


async def test_a_stop_string_in_the_last_token_counts(autojump_clock: trio.testing.MockClock) -> None:
    """Where the length and the stop string end an answer together, it is the stop string."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "hello\n", stop=["ll"], max_tokens=4)
    assert (text_of(outputs), outputs[-1].finish_reason, outputs[-1].stop_reason) == ("he", "stop", "ll")


async def test_stop_strings_wait_for_min_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """A stop string within the first min_tokens tokens is text."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "hello hello\n", stop=["ll"], min_tokens=5)
    assert text_of(outputs) == "hello he"


async def test_half_a_character_is_never_shown(autojump_clock: trio.testing.MockClock) -> None:
    """A character of several tokens comes whole; one that is cut off at the end comes as the replacement character."""
    async with run_engine(simulate().parts) as engine:
        outputs = await ask(engine, "é🌍\n")
        assert [output.text for output in outputs if output.text] == ["é", "🌍"]
        assert text_of(await ask(engine, "é🌍\n", max_tokens=4)) == "é�"


async def test_a_second_request_is_told_its_cached_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """A prompt whose beginning is cached says how much of it was spared."""
    async with run_engine(simulate().parts) as engine:
        assert (await ask(engine, "a long prompt\n"))[-1].num_cached_tokens == 0
        assert (await ask(engine, "a long prompt\n"))[-1].num_cached_tokens == 12
        assert engine.stats().prefix_hits == engine.stats().cached_prompt_tokens == 12


async def test_several_answers_to_one_prompt_come_apart(autojump_clock: trio.testing.MockClock) -> None:
    """With n = 3 each output belongs to one answer, and each answer has its own end."""
    simulation = simulate()
    async with run_engine(simulation.parts) as engine:
        outputs = await ask(engine, "hello\n", n=3)
    assert [text_of(outputs, choice) for choice in range(3)] == ["hello"] * 3
    assert sorted(output.choice for output in outputs if output.finish_reason is not None) == [0, 1, 2]
    assert simulation.all_blocks_are_back


async def test_a_slow_reader_finds_everything_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """A reader that comes late gets the whole answer as one output, and slowed nobody."""
    async with run_engine(simulate().parts) as engine, engine.generate("hello\n") as stream:
        await trio.sleep(60)
        outputs = [output async for output in stream]
    assert [(output.text, output.finish_reason) for output in outputs] == [("hello", FinishReason.STOP)]


async def test_a_greedy_reader_lets_the_others_run(autojump_clock: trio.testing.MockClock) -> None:
    """Requests at the same time all get their own answers."""
    simulation = simulate()
    answers: dict[str, str] = {}

    async def one(engine: Engine, prompt: str) -> None:
        answers[prompt] = text_of(await ask(engine, prompt))

    async with run_engine(simulation.parts, check=True) as engine, trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(one, engine, f"prompt {number}\n")
    assert answers == {f"prompt {number}\n": f"prompt {number}" for number in range(16)}
    assert simulation.all_blocks_are_back


@pytest.mark.parametrize(
    ("prompt", "params", "error", "param", "message"),
    [
        ("", {}, InvalidRequest, "prompt", "The prompt is empty: it must have at least one token."),
        ([], {}, InvalidRequest, "prompt", "The prompt is empty: it must have at least one token."),
        ("a" * 64, {}, PromptTooLong, "prompt", "The prompt has 64 tokens; the model takes at most 64 in all"),
        ([1, 256], {}, InvalidRequest, "prompt", "integers from 0 to 255; the one at position 1 is 256"),
        ([1, -1], {}, InvalidRequest, "prompt", "position 1 is -1"),
        ([1, True], {}, InvalidRequest, "prompt", "position 1 is True"),
        ([1, "x"], {}, InvalidRequest, "prompt", "position 1 is 'x'"),
        (
            b"bytes",
            {},
            InvalidRequest,
            "prompt",
            "A prompt is a text, a list of token ids or a conversation, not bytes",
        ),
        ("abc", {"min_tokens": 62}, InvalidRequest, "min_tokens", "more than the prompt leaves room for: 3 of"),
        ("abc", {"stop_token_ids": [256]}, InvalidRequest, "stop_token_ids", "position 0 is 256"),
        ("abc", {"n": 5}, InvalidRequest, "n", "n must be at most 4 on this server, not 5."),
        (ChatPrompt(messages=[{"content": "refuse"}]), {}, InvalidRequest, "messages", "The template refuses."),
        (ChatPrompt(messages=[{"content": "raise"}]), {}, RequestFailed, None, "The prompt could not be tokenized."),
        (ChatPrompt(messages=[{"content": "a" * 64}]), {}, PromptTooLong, "messages", "The prompt has 65 tokens"),
    ],
)
async def test_a_request_at_fault_is_refused_alone(
    prompt: object, params: dict[str, object], error: type[TrioletError], param: str | None, message: str
) -> None:
    """A request's own fault is raised on entering its scope, names the field, and leaves nothing behind."""
    simulation = simulate(step_s=0)
    async with run_engine(simulation.parts) as engine:
        with pytest.raises(error) as caught:
            await ask(engine, prompt, **params)  # type: ignore[arg-type]
        assert message in caught.value.message
        assert caught.value.param == param
        assert text_of(await ask(engine, "fine\n")) == "fine"
        assert engine.health is None
    assert simulation.all_blocks_are_back


async def test_a_model_without_a_template_refuses_conversations() -> None:
    """The refusal says what to send instead."""
    tokenizer = ByteTokenizer()
    tokenizer.has_chat_template = False
    async with run_engine(simulate(tokenizer=tokenizer, step_s=0).parts) as engine:
        with pytest.raises(InvalidRequest, match="no chat template: send a prompt instead of messages"):
            await ask(engine, ChatPrompt(messages=[{"content": "hello"}]))


async def test_a_decoder_that_breaks_ends_its_own_request(autojump_clock: trio.testing.MockClock) -> None:
    """The text so far comes, then RequestFailed; the other request goes on and every block is back."""

    class Fragile(ByteDecoder):
        def push(self, ids: Sequence[int]) -> str:
            if bytes(ids) == b"!":
                raise ZeroDivisionError
            return super().push(ids)

    tokenizer = ByteTokenizer()
    tokenizer.incremental = lambda *args, **kwargs: Fragile()  # type: ignore[method-assign]
    simulation = simulate(tokenizer=tokenizer)
    async with run_engine(simulation.parts) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(ask, engine, "unharmed\n")
        async with engine.generate("ab!cd\n") as stream:
            assert [(await anext(stream)).text, (await anext(stream)).text] == ["a", "b"]
            with pytest.raises(RequestFailed, match=r"^The answer could not be turned into text\.$"):
                await anext(stream)
    assert simulation.all_blocks_are_back


async def test_a_full_queue_refuses_at_once(mock_clock: trio.testing.MockClock) -> None:
    """Past max_num_queued_reqs a request is refused before it is tokenized, with a time to come back."""
    simulation = simulate(max_num_seqs=1, max_num_queued_reqs=2)
    async with run_engine(simulation.parts) as engine, trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(ask, engine, f"{number}\n")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, engine, "2\n")  # one of the two is running by now
        await trio.testing.wait_all_tasks_blocked()
        assert (engine.stats().running, engine.stats().waiting) == (1, 2)
        with pytest.raises(Overloaded, match="The queue is full: 2 requests are waiting") as caught:
            await ask(engine, ChatPrompt(messages=[{"content": "raise"}]))
        assert caught.value.retry_after_s >= 1
        nursery.cancel_scope.cancel()


async def test_a_name_is_unique_among_open_scopes(mock_clock: trio.testing.MockClock) -> None:
    """A request id in use is refused; once its scope is left it may be used, even before the step has landed."""
    async with run_engine(simulate().parts) as engine:
        async with engine.generate("a\n", request_id="mine") as stream:
            assert stream.request_id == "mine"
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(InvalidRequest, match="'mine' is in use by an open request"):
                await engine.generate("b\n", request_id="mine").__aenter__()
        async with engine.generate("c\n", request_id="mine") as again:
            assert again.request_id == "mine"
            mock_clock.autojump_threshold = 0
            assert "".join([output.text async for output in again]) == "c"


async def test_beams_that_can_never_all_be_there_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    """The client's mistake, named by its field: no error of ours."""
    simulation = simulate(num_blocks=16, block_size=4, max_model_len=64)
    async with run_engine(simulation.parts) as engine:
        params = SamplingParams(n=4, max_tokens=40, use_beam_search=True)
        async with engine.generate("hello\n", params) as stream:
            with pytest.raises(
                InvalidRequest, match="4 beams of 46 tokens need more than the whole KV cache"
            ) as caught:
                await anext(stream)
        assert caught.value.param == "n"
    assert simulation.all_blocks_are_back
