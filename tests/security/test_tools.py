"""Hostile tool schemas against the real model: each is answered or refused by name, and the engine goes on."""

import json
from typing import Any

from tests.acceptance.asking import check_pool_is_free
from tests.acceptance.serving import serving
from triolet.engine.config import EngineConfig

MIB = 1024 * 1024


def nested(keyword: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema]} if keyword == "anyOf" else {keyword: {"a": schema}}
    return schema


PARTS: list[Any] = [
    {"type": "str"},
    {"type": ["string", 5]},
    {"type": "string", "pattern": "*"},
    {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    {"type": "string", "pattern": "(a+)+$"},
    {"type": "string", "pattern": "a{99999999999}"},
    {"type": "string", "pattern": "\\p{L}{2,1}"},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "pattern": "[z-a]"},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "string", "maxLength": 2**31 - 1},
    {"type": "string", "format": "no such format"},
    {"type": "integer", "minimum": 10, "maximum": 1},
    {"type": "number", "multipleOf": 0},
    {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000},
    {"enum": ["</tool_call>", '"}}', "\u0000", "\ud83d\ude00"]},
    {"enum": [str(number) for number in range(4001)]},
    {"$ref": "#/properties/a"},
    {"$ref": "#/$defs/nobody"},
    {"$ref": "#"},
    nested("properties", 30),
    nested("anyOf", 60),
    {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    {"not": {"type": "string"}},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    False,
    {"properties": {'"},"name": "g': {"type": "null"}}, "type": "object", "required": ['"},"name": "g']},
]


async def test_a_hostile_schema_ends_nothing() -> None:
    """With every choice: 200, or a 400 that says which tool; afterwards a call is made as ever."""
    config = EngineConfig(kv_cache_memory=64 * MIB, max_model_len=1024)
    async with serving(config) as served:

        async def ask(parameters: Any, **fields: Any) -> Any:
            function = {"name": "f", "parameters": parameters}
            body = {
                "messages": [{"role": "user", "content": "Call f."}],
                "tools": [{"type": "function", "function": function}],
                "max_tokens": 4,
                **fields,
            }
            return await served.client.post("/v1/chat/completions", content=json.dumps(body).encode())

        for part in PARTS:
            parameters = {"type": "object", "properties": {"a": part}, "required": ["a"]}
            for choice in ("auto", "required"):
                response = await ask(parameters, tool_choice=choice)
                assert response.status_code in (200, 400), (part, response.text)
                if response.status_code == 400 and "context_length" not in response.text:
                    assert response.json()["error"]["param"].startswith("tools"), (part, response.text)
        await served.wait_idle()
        check_pool_is_free(served.engine)
        fine = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
        response = await ask(fine, tool_choice="required", parallel_tool_calls=False, max_tokens=60, temperature=0)
        (call,) = response.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "f"
