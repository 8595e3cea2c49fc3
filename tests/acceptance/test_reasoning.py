"""Reasoning with the built-in model, whose template is made to open it: counted, within a budget, calls behind it."""

import json
from typing import Any

import pytest

from triolet.engine.config import EngineConfig

from .serving import Served, serving

MIB = 1024 * 1024
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{% endif %}<|im_start|>assistant\n<think>\n{# </think> <tool_call> #}"
)
BUDGET = 12
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]},
    },
}


async def ask(served: Served, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "How are you?"}]
    response = await served.client.post("/v1/chat/completions", json={"messages": messages, "seed": 7, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.parametrize("runner", ["thread", "process"])
async def test_a_budget_of_reasoning_is_kept_and_calls_come_behind_it(runner: Any) -> None:
    """In the server's process and in one of its own: the mark is forced, several answers each have their own count, and
    what is enforced begins where the reasoning ends."""
    config = EngineConfig(kv_cache_memory=64 * MIB, max_model_len=1024, chat_template=TEMPLATE, runner=runner)
    async with serving(config) as served:
        number_of_marks = len(served.engine.tokenizer.mark("</think>")[0])
        body = await ask(served, thinking_token_budget=BUDGET, max_tokens=60, n=2, ignore_eos=True)
        for choice in body["choices"]:
            assert choice["message"]["reasoning"]
            assert choice["message"]["content"]
            assert "think>" not in choice["message"]["reasoning"] + choice["message"]["content"]
        counted = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert counted <= 2 * BUDGET
        body = await ask(
            served,
            thinking_token_budget=BUDGET,
            max_tokens=100,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        (choice,) = body["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        assert choice["message"]["reasoning"]
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["x"] in (1, 2)
        body = await ask(served, max_tokens=BUDGET)
        (choice,) = body["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == BUDGET
        assert number_of_marks > 1
