"""Asking an engine, alone and together with others."""

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.stream import Output


class Question(Protocol):
    """A prompt as token ids, and how to answer it."""

    @property
    def prompt(self) -> list[int]: ...
    @property
    def params(self) -> SamplingParams: ...


@attrs.frozen
class Answer:
    """One request's outputs, put together."""

    token_ids: list[int]
    text: str
    last: Output


async def ask(engine: Engine, question: Question) -> Answer:
    """One request, from its scope's beginning to its end."""
    async with engine.generate(question.prompt, question.params) as stream:
        outputs = [output async for output in stream]
    return Answer(
        token_ids=[token for output in outputs for token in output.token_ids],
        text="".join(output.text for output in outputs),
        last=outputs[-1],
    )


async def ask_alone(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """One after the other: the engine has nothing else to do."""
    return [await ask(engine, question) for question in questions]


async def ask_together(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """All at once."""
    answers: dict[int, Answer] = {}

    async def one(index: int) -> None:
        answers[index] = await ask(engine, questions[index])

    async with trio.open_nursery() as nursery:
        for index in range(len(questions)):
            nursery.start_soon(one, index)
    return [answers[index] for index in range(len(questions))]


def check_pool_is_free(engine: Engine) -> None:
    """Nobody is there, and every block can be had."""
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.kv_usage == 0
