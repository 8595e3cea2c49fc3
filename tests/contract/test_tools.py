"""The contract with the built-in model and tool calls in the making: a client that goes takes them all with it."""

import json
from typing import Any

from tests.acceptance.asking import check_pool_is_free
from tests.acceptance.serving import serving
from triolet.engine.config import EngineConfig

from .clients import PROTOCOLS, connect
from .stage import until

MIB = 1024 * 1024
LONG = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^[a-z ]{600}$"}}, "required": ["x"]}
SHORT = {"type": "object", "properties": {"x": {"enum": ["yes"]}}, "required": ["x"]}


def asked(parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Call f."}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 600,
        **fields,
    }


async def test_leaving_in_the_middle_of_a_call_gives_everything_back() -> None:
    """Every way, one answer and three, streamed and plain: the pool is free, and the next call is whole."""
    async with serving(EngineConfig(kv_cache_memory=96 * MIB, max_model_len=2048)) as served:
        for protocol, kind in PROTOCOLS.items():
            for way in kind.WAYS:
                for fields in ({"stream": True}, {"stream": True, "n": 3}, {"n": 2}):
                    before = served.engine.stats()
                    client = await connect(protocol, served.port)
                    await client.ask("/v1/chat/completions", asked(LONG, **fields))
                    if fields.get("stream"):
                        await client.read_until(b'"function":{"arguments":')
                    else:
                        await until(lambda before=before: served.engine.stats().steps > before.steps + 3)
                    await client.leave(way)
                    await until(lambda: not served.engine.stats().running and not served.run.lifecycle.open_requests)
                    check_pool_is_free(served.engine)
                    assert served.engine.stats().generation_tokens - before.generation_tokens < 600
                    await client.close()
        client = await connect("http/1.1", served.port)
        answer = await client.answer("/v1/chat/completions", asked(SHORT))
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"x": "yes"}
        await client.close()
        await served.wait_idle()
