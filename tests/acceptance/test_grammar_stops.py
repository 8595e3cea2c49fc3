"""Stop strings beside a grammar, on the built-in model: the form up to the stop, whatever else it asks."""

import json
import re
from itertools import product
from typing import Any

import pytest

from triolet.engine.config import EngineConfig

from .asking import check_pool_is_free
from .serving import Served, serving

KV_BYTES = 96 << 20
REGEX = "(red|green) (car|boat) drives (north|south)"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "regex": ({"structured_outputs": {"regex": REGEX}}, [" drives", "never"]),
    "schema": (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        ['"size"', "never"],
    ),
}
MORE: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"min_tokens": 2},
    {"logprobs": True, "top_logprobs": 2},
]


def fits(form: str, text: str) -> bool:
    """What stands before the stop is the beginning of something that the grammar allows."""
    if form == "regex":
        return re.fullmatch("(red|green) (car|boat)", text) is not None
    return re.fullmatch(r'\s*\{\s*"name"\s*:\s*"[^"\\]*(\\.[^"\\]*)*"\s*,\s*', text) is not None


async def answers(served: Served, **body: Any) -> list[tuple[str, str, Any]]:
    """Text, finish reason and stop reason of each choice."""
    response = await served.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        choices = response.json()["choices"]
        return [(each["message"]["content"], each["finish_reason"], each["stop_reason"]) for each in choices]
    texts, ends = {}, {}
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    for choice in (choice for line in lines for choice in json.loads(line.removeprefix("data: "))["choices"]):
        assert choice["index"] not in ends
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
        if choice["finish_reason"] is not None:
            ends[choice["index"]] = (choice["finish_reason"], choice["stop_reason"])
    return [(texts[index], *ends[index]) for index in sorted(texts)]


@pytest.mark.parametrize("form", FORMS)
async def test_a_stop_string_ends_what_a_grammar_holds(form: str) -> None:
    """Two answers, streamed and plain, the stop shown or not, with penalties, logprobs or a least length: each is a
    beginning of the form and ends at the stop. Without a stop that comes it is whole. Everything is given back."""
    constraint, stop = FORMS[form]
    messages = [{"role": "user", "content": "Describe something."}]
    async with serving(EngineConfig(kv_cache_memory=KV_BYTES, max_model_len=1024)) as served:
        for number, (stream, more) in enumerate(product((False, True), MORE)):
            include = (number + stream) % 2 == 1
            how = {"include_stop_str_in_output": include, "stop": stop, "seed": 5, "max_tokens": 120, "n": 2}
            found = await answers(served, messages=messages, stream=stream, **constraint, **how, **more)
            assert len(found) == 2
            for text, finish, reason in found:
                assert (finish, reason) == ("stop", stop[0]), (text, more)
                assert text.endswith(stop[0]) == include
                assert fits(form, text.removesuffix(stop[0])), text
        (whole,) = await answers(
            served, messages=messages, stream=False, **constraint, stop=["never"], seed=5, max_tokens=120
        )
        assert whole[1:] == ("stop", None)
        assert re.fullmatch(REGEX, whole[0]) if form == "regex" else json.loads(whole[0])["size"] in (1, 2, 3)
        await served.wait_idle()
        check_pool_is_free(served.engine)
