"""Embeddings keep the contract: a client that goes, a cancel by name, a deadline, over real sockets."""

import json
from typing import Any

import pytest
import trio.testing

from property_tests.memory import MemoryDevice

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, staged, until

EMBEDDINGS = "/v1/embeddings"
WAYS = [(protocol, way) for protocol, client in PROTOCOLS.items() for way in client.WAYS]


def body(**fields: Any) -> dict[str, Any]:
    """Two inputs of three steps each: a step has 16 tokens."""
    return {"input": ["a" * 40, "b" * 40], **fields}


async def tokenizing(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """The first input is in a worker thread of the tokenizer, the second has not come in."""
    stage.tokenizer.held = True
    await client.ask(EMBEDDINGS, {**asked, "input": ["a" * 5000, "b"]})
    await stage.tokenizer.started.wait()


async def in_prefill(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """The second chunk is on the device."""
    await client.ask(EMBEDDINGS, asked)
    await until(lambda: stage.device.waits)
    await stage.step()
    assert stage.num_plans == 2


async def at_the_last_chunk(stage: Stage, client: Client, asked: dict[str, Any]) -> None:
    """The step that would give the last vector is on the device."""
    await client.ask(EMBEDDINGS, asked)
    await until(lambda: stage.device.waits)
    await stage.step(4)
    assert stage.num_plans == 5


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("reach", [tokenizing, in_prefill, at_the_last_chunk])
@pytest.mark.parametrize(("protocol", "way"), WAYS)
async def test_leaving_gives_everything_back(protocol: str, way: str, reach: Any, pooling: str) -> None:
    """Out of the scheduler at the next step boundary, the blocks of every input back, tasks and descriptors gone."""
    async with staged(runner=MemoryDevice) as stage:
        client = await connect(protocol, stage.port)
        await reach(stage, client, body(pooling=pooling))
        num_plans = stage.num_plans
        await client.leave(way)
        await until(lambda: not stage.num_open)
        if stage.device.waits:
            await stage.step()
        assert stage.num_plans == num_plans, "no later plan has it"
        assert reach is tokenizing or stage.engine_is_empty()
        await client.close()
        await stage.wait_all_gone()


@pytest.mark.parametrize(
    ("by", "status", "code"), [("deadline", 408, "timeout"), ("name", 400, "cancelled"), ("newer", 400, "cancelled")]
)
async def test_what_ends_it_from_outside_is_an_error(
    by: str, status: int, code: str, mock_clock: trio.testing.MockClock
) -> None:
    """Its deadline, a cancel by name, a newer request of its key: no vector, and everything is back."""
    async with staged(runner=MemoryDevice) as stage:
        client, other = await connect("http/1.1", stage.port), await connect("http/1.1", stage.port)
        await client.ask(EMBEDDINGS, body(timeout=5.0), x_request_id="mine", x_supersede_key="key")
        await until(lambda: stage.device.waits)
        if by == "deadline":
            mock_clock.jump(6.0)
        elif by == "name":
            assert await other.answer("/v1/requests/mine/cancel", {})
        else:
            await other.ask(EMBEDDINGS, {"input": "b"}, x_supersede_key="key")
            await until(lambda: stage.num_open == 2)
        stage.device.step(1000)
        error = json.loads(await client.read())["error"]
        assert (client.status, error["code"]) == (status, code)
        if by == "newer":
            assert len(json.loads(await other.read())["data"]) == 1
        await client.close()
        await other.close()
        await stage.wait_all_gone()
