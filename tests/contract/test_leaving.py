"""Client gone, in every state and every way: its request is out at the next step boundary and gives everything back."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, staged, until

CHAT = "/v1/chat/completions"
LONG = "a" * 40
"""A prompt of three steps: a step has 16 tokens."""


def body(text: str = LONG, **fields: Any) -> dict[str, Any]:
    """A chat that is told its first line again; a beam search says what it likes."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 40, **fields}


@attrs.frozen
class State:
    """How to get a request there."""

    name: str
    reach: Callable[[Stage, Client, dict[str, Any]], Awaitable[None]]
    stalled: bool = False
    loud: bool = False
    window: int = 10_000_000
    tokens_in_flight: bool = False
    """The step in flight when the client leaves samples tokens for it."""
    num_others: int = 0
    streamed: tuple[bool, ...] = (True, False)


async def tokenizing(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """In a worker thread of the tokenizer."""
    stage.tokenizer.held = True
    await client.ask(CHAT, {**asked, "messages": [{"role": "user", "content": "a" * 5000}]})
    await stage.tokenizer.started.wait()
    assert stage.engine.stats().waiting == 1


async def queued(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """Behind a request that has every place in the batch."""
    other = await connect("http/1.1", stage.port)
    stage.others.append(other)
    await other.ask(CHAT, body("hello", stream=True, n=4))
    await until(lambda: stage.num_plans == 1)
    await client.ask(CHAT, asked)
    await until(lambda: stage.num_open == 2 and stage.engine.stats().waiting == 1)


async def in_prefill(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """The second of three chunks is on the device."""
    await client.ask(CHAT, asked)
    await until(lambda: stage.device.waits)
    await stage.step()
    assert stage.num_plans == 2


async def in_decode(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """Two tokens are there, the third is on the device."""
    await client.ask(CHAT, asked)
    await until(lambda: stage.device.waits)
    await stage.step(4)
    assert stage.num_plans == 5
    if asked["stream"]:
        await client.read_until(b'"content":"a')


async def sending(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """A delta does not fit into the client's buffers, and more tokens are to come."""
    await client.ask(CHAT, asked)
    await until(lambda: stage.device.waits)
    while not stage.run.server.num_blocked_writes:
        await stage.step()
    assert stage.engine.stats().running


async def ended(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """The engine is done; the last bytes wait for the client."""
    await client.ask(CHAT, asked)
    await until(lambda: stage.device.waits)
    stage.device.step(1000)
    await until(lambda: stage.engine_is_empty() and stage.run.server.num_blocked_writes)
    assert stage.num_open == 1


STATES = [
    State("tokenizing", tokenizing),
    State("queued", queued, num_others=1),
    State("in prefill", in_prefill),
    State("in decode", in_decode, tokens_in_flight=True),
    State("sending a delta", sending, stalled=True, loud=True, tokens_in_flight=True, streamed=(True,)),
    State("between the last token and the last byte", ended, stalled=True, loud=True),
]
SHUT = [attrs.evolve(state, name=f"{state.name}, the window shut", window=1000) for state in STATES if state.stalled]
KINDS: dict[str, dict[str, Any]] = {"one": {}, "three": {"n": 3}, "beams": {"n": 3, "use_beam_search": True}}


def cases() -> Iterator[Any]:
    """Every protocol and way, state, kind of answer; beams aren't streamed."""
    for protocol, client in PROTOCOLS.items():
        for way in client.WAYS:
            for state in STATES + (SHUT if protocol == "http/2" else []):
                for streamed in state.streamed:
                    for kind, fields in KINDS.items():
                        if not (streamed and kind == "beams"):
                            how = "streamed" if streamed else "plain"
                            yield pytest.param(
                                protocol,
                                way,
                                state,
                                {**fields, "stream": streamed},
                                id=f"{protocol} {way} {state.name} {how} {kind}",
                            )


@pytest.mark.parametrize(("protocol", "way", "state", "fields"), list(cases()))
async def test_leaving_gives_everything_back(protocol: str, way: str, state: State, fields: dict[str, Any]) -> None:
    """Out of the scheduler at the next step boundary, at most the step in flight wasted, tasks and descriptors gone."""
    async with staged() as stage:
        stage.tokenizer.loud = state.loud
        client = await connect(protocol, stage.port, stalled=state.stalled, window=state.window)
        await state.reach(stage, client, body(**fields))
        num_plans = stage.num_plans
        await client.leave(way)
        await until(lambda: stage.num_open == state.num_others)
        if stage.device.waits:
            await stage.step()
        assert stage.num_plans == num_plans + state.num_others, "no later plan has it"
        num_sequences = fields.get("n", 1)
        assert stage.wasted_tokens <= (num_sequences if state.tokens_in_flight else 0)
        if not state.num_others:
            assert state.name == "tokenizing" or stage.engine_is_empty()
        for other in stage.others:
            stage.device.step(1000)
            assert (await other.read()).count(b'"content":"h"') == 4
            await other.close()
        await client.close()
        await stage.wait_all_gone()
