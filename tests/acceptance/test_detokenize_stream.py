"""The text of a stream is the text of its tokens, and a stop string never shows a character of itself.

The tokenizer is the built-in model's; the model is one that says what its prompt asks it to, so that the answers hold
what a real model's would only by luck: characters of several tokens, marks that combine, tokens that are no text.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio.testing

from property_tests.memory import MemoryDevice
from tests.engine.simulated import SimulatedDevice
from triolet.engine.assembly import EngineParts
from triolet.engine.config import EngineConfig
from triolet.engine.core.ids import TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.engine.engine import Engine, EngineFacts
from triolet.engine.open import run_engine
from triolet.engine.stream import Output
from triolet.kvcache.manager import KVCacheManager
from triolet.model.source import resolve_source
from triolet.model.tokenizer import ChatTokenizer, load_tokenizer

from .models import Case
from .serving import serving, stream_completion

SAY = 3
"""A token between what is to be said and nothing: `<repo_name>`, which no text of these tests holds."""
TEXTS = {
    "emoji": "Hi 👋! 🙂🙃 A family: 👨‍👩‍👧‍👦, a flag: 🏳️‍🌈, a skin: 👍🏽, two letters: 🇫🇷.",
    "chinese": "机器学习是人工智能的一个分支。它使计算机能够从数据中学习，而无需显式编程。龘靐齉爩",
    "combining marks": "e\u0301 a\u0308 o\u0302\u0323 — Z\u0351\u036b\u0343A\u0310L\u0342 — हिन्दी — ภาษาไทย — ข้อความ",
    "other scripts": "Привет, мир! こんにちは世界 안녕하세요 مرحبا بالعالم שלום עולם Ελληνικά",
    "code and spaces": "def f(x):\n\treturn {'a':   x}\n\n\n    # done…\r\n  two  spaces ",
    "rare characters": "𝕿𝖍𝖊 𝔣𝔬𝔵 𓀀𓁐 𠜎𠜱 ﷽ \u200b\u2060\ufeff ½ ﬁ",
}
STOPS = {
    "emoji": ["👧‍👦", "a skin", "🇷", "🏽"],
    "chinese": ["分支。它使", "龘", "显式编", "，而"],
    "combining marks": ["\u0301 a", "Z\u0351", "्दी", "ข้อ"],
    "other scripts": ["мир! こん", "세요 مر", "ם ע", "ά"],
    "code and spaces": ["return {", "\n\n\n", "\r\n ", "  two"],
    "rare characters": ["𝖊 𝔣", "𓁐", "\u2060", "ﬁ"],
}


class SayingModel(MemoryDevice):
    """Says what its prompt holds after its first `SAY`, then ends. It gathers through the block table all the same."""

    end = TokenId(0)

    def _gather(self, row: Any, *args: Any) -> TokenId:
        super()._gather(row, *args)
        asked = row.tokens[row.tokens.index(SAY) + 1 :]
        length = asked.index(SAY)
        said = len(asked) - length - 1
        return TokenId(asked[said]) if said < length else self.end


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    """The built-in model's."""
    return load_tokenizer(resolve_source(None))


@asynccontextmanager
async def saying(tokenizer: ChatTokenizer, *, step_s: float = 1.0) -> AsyncIterator[Engine]:
    """A real engine around a model that says what it is asked to."""
    cache = KVCacheManager(num_blocks=512, block_size=16)
    end = tokenizer.eos_token_ids[0]

    def make_model() -> SayingModel:
        model = SayingModel(num_blocks=512, block_size=16, vocab_size=tokenizer.vocab_size)
        model.end = TokenId(end)
        return model

    facts = EngineFacts(
        model_name="saying",
        max_model_len=4096,
        vocab_size=tokenizer.vocab_size,
        max_num_seqs=64,
        end_token_ids=(TokenId(end),),
    )
    parts = EngineParts(
        facts=facts,
        tokenizer=tokenizer,
        scheduler=Scheduler(SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048), cache),
        cache=cache,
        device=SimulatedDevice(make_model, step_s=step_s),
        max_num_queued_reqs=64,
    )
    async with run_engine(parts) as engine:
        yield engine


def to_say(answer: list[int]) -> list[int]:
    return [SAY, *answer, SAY]


async def outputs_of(engine: Engine, answer: list[int], **how: Any) -> list[Output]:
    """What a reader gets who reads every step's output by itself."""
    params = SamplingParams(temperature=0, max_tokens=1000, **how)
    async with engine.generate(to_say(answer), params) as stream:
        return [output async for output in stream]


@pytest.mark.parametrize("name", TEXTS)
async def test_the_stream_is_the_whole(
    name: str, tokenizer: ChatTokenizer, autojump_clock: trio.testing.MockClock
) -> None:
    """Token by token; no output ends within a character, so none holds the sign of a broken one."""
    answer = tokenizer.encode(TEXTS[name], add_special_tokens=False)
    async with saying(tokenizer) as engine:
        outputs = await outputs_of(engine, answer)
    assert [token for output in outputs for token in output.token_ids] == answer
    assert len(outputs) > 20
    assert "".join(output.text for output in outputs) == TEXTS[name] == tokenizer.decode(answer)
    assert not any("\ufffd" in output.text for output in outputs)
    assert outputs[-1].finish_reason == "stop"


async def test_the_stream_of_any_tokens_is_the_whole(
    tokenizer: ChatTokenizer, autojump_clock: trio.testing.MockClock
) -> None:
    """Tokens by chance, broken characters among them, fifty streams at once: what is broken is so in both."""
    chance = random.Random(0)
    special = {SAY, *tokenizer.eos_token_ids}
    answers = [
        [token for token in (chance.randrange(tokenizer.vocab_size) for _ in range(60)) if token not in special]
        for _ in range(50)
    ]
    texts: dict[int, str] = {}

    async def one(index: int) -> None:
        texts[index] = "".join(output.text for output in await outputs_of(engine, answers[index]))

    async with saying(tokenizer) as engine, trio.open_nursery() as nursery:
        for index in range(len(answers)):
            nursery.start_soon(one, index)
    assert [texts[index] for index in range(len(answers))] == [tokenizer.decode(answer) for answer in answers]
    assert any("\ufffd" in text for text in texts.values())


@pytest.mark.parametrize("name", STOPS)
async def test_a_stop_string_never_shows_a_character_of_itself(
    name: str, tokenizer: ChatTokenizer, autojump_clock: trio.testing.MockClock
) -> None:
    """Wherever it lies, over however many tokens: the stream ends right before it, and says which one it was."""
    text = TEXTS[name]
    answer = tokenizer.encode(text, add_special_tokens=False)
    async with saying(tokenizer) as engine:
        for stop in STOPS[name]:
            outputs = await outputs_of(engine, answer, stop=(stop, "never said"))
            assert "".join(output.text for output in outputs) == text[: text.index(stop)]
            assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", stop)


async def test_every_stop_string_of_two_tokens_and_more(
    tokenizer: ChatTokenizer, autojump_clock: trio.testing.MockClock
) -> None:
    """Every piece of an English text, from inside one token into another: nothing of it shows, all before it does."""
    text = "The quick brown fox jumped over the lazy dogs' backs; nobody was surprised."
    answer = tokenizer.encode(text, add_special_tokens=False)
    stops = {text[start : start + length] for length in (2, 7, 20) for start in range(len(text) - length)}
    async with saying(tokenizer) as engine:
        for stop in sorted(stops):
            outputs = await outputs_of(engine, answer, stop=stop)
            assert "".join(output.text for output in outputs) == text[: text.index(stop)]
            assert outputs[-1].stop_reason == stop


async def test_what_only_begins_like_a_stop_string_is_shown_in_the_end(
    tokenizer: ChatTokenizer, autojump_clock: trio.testing.MockClock
) -> None:
    """Held back while it may become one, shown as soon as it cannot, and at the latest when the answer ends."""
    answer = tokenizer.encode(TEXTS["chinese"], add_special_tokens=False)
    async with saying(tokenizer) as engine:
        outputs = await outputs_of(engine, answer, stop=("分支！", "爩爩"))
    assert "".join(output.text for output in outputs) == TEXTS["chinese"]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", None)


async def test_it_is_the_same_over_http(tokenizer: ChatTokenizer) -> None:
    """Server-sent events carry whole characters, and nothing of a stop string."""

    @asynccontextmanager
    async def open_saying(config: EngineConfig, **how: Any) -> AsyncIterator[Engine]:
        async with saying(tokenizer, step_s=0.0) as engine:
            yield engine

    params = SamplingParams(temperature=0, max_tokens=1000)
    async with serving(EngineConfig(), open_engine=open_saying) as served:
        for name, text in TEXTS.items():
            case = Case(to_say(tokenizer.encode(text, add_special_tokens=False)), [], params)
            assert await stream_completion(served, case) == text
            for stop in STOPS[name]:
                assert await stream_completion(served, case, stop=stop) == text[: text.index(stop)]
