"""While grammars are compiled nobody else waits, which is counted in steps; and whoever leaves leaves nothing."""

import json
from typing import Any

import pytest

from triolet.engine import grammar as grammar_module

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, staged, until
from .states import CHAT, choices_of

LETTERS = "abcdefgh"
"""All different: one that has come is the one of this step."""


def asked(number: int = 0, **fields: Any) -> dict[str, Any]:
    """A chat with a grammar; each number has another."""
    regex = {"structured_outputs": {"regex": f"[ab]{{{number + 1}}}"}}
    return {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 40, **regex, **fields}


async def begin(stage: Stage, protocol: str, asked: dict[str, Any]) -> Client:
    client = await connect(protocol, stage.port)
    await client.ask(CHAT, asked)
    return client


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("num_compiles", [1, 3])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_goes_on_while_grammars_are_compiled(protocol: str, num_compiles: int, streamed: bool) -> None:
    """Each step that the device makes gives the stream a token, to its end, while one compilation works and the others
    wait; afterwards each of them is answered."""
    async with staged() as stage:
        other = await connect(protocol, stage.port)
        await other.ask(CHAT, {"messages": [{"role": "user", "content": LETTERS}], "stream": True})
        await until(lambda: stage.device.waits)
        stage.compiler.held = True
        waiting = [
            await begin(stage, protocol, asked(number, stream=streamed, n=1 + number)) for number in range(num_compiles)
        ]
        await stage.compiler.started.wait()
        await until(lambda: stage.num_open == 1 + num_compiles)
        for letter in LETTERS:
            before = stage.num_plans
            await stage.step()
            assert stage.num_plans == before + 1, "the next step was planned as soon as this one had landed"
            await other.read_until(f'"content":"{letter}"'.encode())
            assert stage.compiler.num_at_work == 1, "one at a time; the others wait for their turn"
            assert stage.compiler.num_compiled == 0
        await stage.step()
        (told,) = choices_of(await other.read(), streamed=True)
        assert (told.text, told.finish_reason) == (LETTERS, "stop")

        stage.compiler.may_end.set()
        stage.device.step(1000)
        for number, client in enumerate(waiting):
            answers = choices_of(await client.read(), streamed=streamed)
            assert [answer.text for answer in answers] == ["ab"] * (1 + number)
        assert stage.compiler.num_compiled == num_compiles
        for client in [other, *waiting]:
            await client.close()
        await stage.wait_all_gone()


@pytest.mark.parametrize(("protocol", "way"), [(name, way) for name, kind in PROTOCOLS.items() for way in kind.WAYS])
async def test_who_leaves_in_line_for_the_compiler_gives_the_place_back(protocol: str, way: str) -> None:
    """Whether its own grammar is being compiled or waits for that: the next in line is answered, and what nobody wants
    any more is not begun."""
    async with staged(step_freely=True) as stage:
        stage.compiler.held = True
        at_work = await begin(stage, protocol, asked(0))
        await stage.compiler.started.wait()
        in_line = await begin(stage, protocol, asked(1))
        last = await begin(stage, protocol, asked(2))
        await until(lambda: stage.num_open == 3 and stage.engine.stats().waiting == 3)
        for client in (in_line, at_work):
            await client.leave(way)
        await until(lambda: stage.num_open == 1)
        assert stage.engine.stats().waiting == 1
        assert stage.num_plans == 0
        stage.compiler.may_end.set()
        (told,) = choices_of(await last.read(), streamed=False)
        assert told.text == "ab"
        assert stage.compiler.num_compiled == 2, "the one that was begun, and the last one's"
        for client in (at_work, in_line, last):
            await client.close()
        await stage.wait_all_gone()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_compilation_over_its_time_is_a_400_that_says_so(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first byte, for a stream too; the request was never scheduled, and the place in line comes back."""
    monkeypatch.setattr(grammar_module, "COMPILE_S", 0.01)
    async with staged(step_freely=True) as stage:
        stage.compiler.held = True
        client = await begin(stage, "http/1.1", asked(stream=streamed))
        error = json.loads(await client.read())["error"]
        assert client.status == 400
        assert error == {
            "message": "structured_outputs.regex cannot be compiled: it takes more than 0.01 s.",
            "type": "invalid_request_error",
            "param": "structured_outputs.regex",
            "code": None,
        }
        assert stage.num_plans == 0
        stage.compiler.held = False
        stage.compiler.may_end.set()
        monkeypatch.setattr(grammar_module, "COMPILE_S", 60)
        (told,) = choices_of(json.dumps(await client.answer(CHAT, asked(1))).encode(), streamed=False)
        assert told.text == "ab"
        await client.close()
        await stage.wait_all_gone()
