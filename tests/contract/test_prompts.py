"""More prompts than the queue holds, in one request, to a server that has nothing else to do."""

import json
from typing import Any

import pytest

from .clients import PROTOCOLS, connect
from .stage import staged, until

PATH = "/v1/completions"
LIMITS: dict[str, Any] = {"max_num_seqs": 2, "max_num_queued_reqs": 3, "max_num_batched_tokens": 16}
WORDS = [f"w{number}" for number in range(20)]


def asked(num_prompts: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": [f"{word}\n" for word in WORDS[:num_prompts]], "max_tokens": 20, **fields}


async def test_prompts_wait_within_their_request() -> None:
    """All are answered, in order, though the queue holds three; no more than that are in the engine at a time."""
    async with staged(**LIMITS) as stage:
        client = await connect("http/1.1", stage.port)
        await client.ask(PATH, asked(20))
        most = 0
        while len(stage.engine.stories()) < 20 or not stage.engine_is_empty():
            stats = stage.engine.stats()
            most = max(most, stats.running + stats.waiting)
            await stage.step()
        assert most == 3
        choices = json.loads(await client.read())["choices"]
        assert [choice["text"] for choice in choices] == WORDS
        await client.close()
        await stage.wait_all_gone()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_prompts_that_wait_leave_with_their_client(protocol: str) -> None:
    """None of those that were not begun is begun."""
    async with staged(**LIMITS) as stage:
        client = await connect(protocol, stage.port)
        await client.ask(PATH, asked(20))
        await until(lambda: stage.device.waits and len(stage.engine.stories()) == 3)
        await client.leave("close")
        await until(lambda: not stage.num_open)
        await stage.step()
        await stage.wait_all_gone()
        assert len(stage.engine.stories()) == 3


async def test_a_stream_of_more_than_the_queue_holds_is_a_400_that_names_the_limit() -> None:
    """Up to the limit it is answered."""
    async with staged(step_freely=True, **LIMITS) as stage:
        client = await connect("http/1.1", stage.port)
        error = (await client.answer(PATH, asked(4, stream=True)))["error"]
        assert (client.status, error["param"], error["type"]) == (400, "prompt", "invalid_request_error")
        assert error["message"] == (
            "prompt may hold at most 3 prompts in a stream, for which all of them are queued together "
            "(--max-num-queued-reqs), not 4."
        )
        await client.ask(PATH, asked(3, stream=True))
        assert (await client.read()).endswith(b"data: [DONE]\n\n")
        await client.close()
        await stage.wait_all_gone()
