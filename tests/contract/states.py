"""The states that a request can be in, and how to bring one there, step by step."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from .clients import Client, connect
from .stage import Stage, until

CHAT = "/v1/chat/completions"
LONG = "a" * 40
"""A prompt of three steps: a step has 16 tokens."""


def body(text: str = LONG, **fields: Any) -> dict[str, Any]:
    """A chat that is told its first line again; a beam search says what it likes."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 40, **fields}


KINDS: dict[str, dict[str, Any]] = {"one": {}, "three": {"n": 3}, "beams": {"n": 3, "use_beam_search": True}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}]
GRAMMAR: dict[str, dict[str, Any]] = {
    "grammar": {"structured_outputs": {"regex": "[ab]+"}},
    "tools": {"tools": TOOLS, "tool_choice": "required", "n": 2},
}


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
    kinds: dict[str, dict[str, Any]] = KINDS


async def tokenizing(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """In a worker thread of the tokenizer."""
    stage.tokenizer.held = True
    await client.ask(CHAT, {**asked, "messages": [{"role": "user", "content": "a" * 5000}]})
    await stage.tokenizer.started.wait()
    assert stage.engine.stats().waiting == 1


async def compiling(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """Its grammar, in the compiler's thread."""
    stage.compiler.held = True
    await client.ask(CHAT, asked)
    await stage.compiler.started.wait()
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
    State("compiling", compiling, kinds=GRAMMAR),
    State("queued", queued, num_others=1),
    State("in prefill", in_prefill, kinds=KINDS | GRAMMAR),
    State("in decode", in_decode, tokens_in_flight=True, kinds=KINDS | GRAMMAR),
    State("sending a delta", sending, stalled=True, loud=True, tokens_in_flight=True, streamed=(True,)),
    State("between the last token and the last byte", ended, stalled=True, loud=True),
]
SHUT = [attrs.evolve(state, name=f"{state.name}, the window shut", window=1000) for state in STATES if state.stalled]


def events(text: bytes) -> list[dict[str, Any]]:
    """The events of a stream that has ended as it should: with [DONE]. Comments are left out."""
    blocks = [block for block in text.decode().split("\n\n") if block and not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


@attrs.frozen
class Told:
    """What a client was told of one choice."""

    text: str
    finish_reason: str | None
    stop_reason: str | int | None
    timed_out: bool | None
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments of tool calls."""


def choices_of(text: bytes, *, streamed: bool) -> list[Told]:
    """The choices of an answer to a chat, by index, however it came."""
    if not streamed:
        whole = json.loads(text)["choices"]
        assert [choice["index"] for choice in whole] == list(range(len(whole)))
        return [_told(choice["message"]["content"], choice, choice["message"].get("tool_calls")) for choice in whole]
    texts: dict[int, str] = {}
    calls: dict[int, list[dict[str, Any]]] = {}
    ends: dict[int, dict[str, Any]] = {}
    for event in events(text):
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in ends, "nothing comes after the end of a choice"
            texts[index] = texts.get(index, "") + choice["delta"].get("content", "")
            for call in choice["delta"].get("tool_calls", ()):
                begun = calls.setdefault(index, [])
                if "id" in call:
                    begun.append(call)
                else:
                    begun[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            if choice["finish_reason"] is not None:
                ends[index] = choice
    assert ends.keys() == texts.keys() == set(range(len(texts)))
    return [_told(texts[index], ends[index], calls.get(index)) for index in range(len(texts))]


def _told(text: str | None, choice: dict[str, Any], calls: list[dict[str, Any]] | None) -> Told:
    called = tuple((call["function"]["name"], call["function"]["arguments"]) for call in calls or ())
    return Told(text or "", choice["finish_reason"], choice["stop_reason"], choice.get("timed_out"), called)
