"""Tools in words, for models whose chat templates know none: what the system's message says of them, and what a
conversation's calls and their results look like then.

Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import ToolFormat

_INTRODUCTION = "You can use functions. Each line here describes one, its parameters by a JSON schema:"
_HOW = "To call a function, write its name and its arguments exactly like this:"
_RESULTS = (
    "What a call gives comes in the next message, between <tool_response> and </tool_response>. "
    "If no function helps, answer without one."
)


def tools_text(tools: Sequence[Mapping[str, Any]], format: ToolFormat) -> str:
    """What the model is told."""
    lines = (json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = format.written("NAME", {"PARAMETER": "VALUE"})
    return "\n\n".join((_INTRODUCTION, "\n".join(lines), _HOW, example, _RESULTS))


def described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], format: ToolFormat
) -> tuple[dict[str, Any], ...]:
    """The conversation in messages of content alone. The tools come in the system's message, behind what it says."""
    result = [_plain(message, format) for message in messages]
    if tools:
        text = tools_text(tools, format)
        if result and result[0]["role"] in ("system", "developer"):
            front = f"{result[0]['content']}\n\n" if result[0]["content"] else ""
            result[0] = {**result[0], "content": front + text}
        else:
            result.insert(0, {"role": "system", "content": text})
    return tuple(result)


def _plain(message: Mapping[str, Any], format: ToolFormat) -> dict[str, Any]:
    plain = dict(message)
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    if calls := plain.pop("tool_calls", None):
        texts = [format.written(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        plain["content"] = "\n".join(filter(None, (plain.get("content"), *texts)))
    return plain
