"""Tools as the Messages API has them.

Pure. Only tools that the client runs can be called; whatever the server itself would have to run is refused by name.
"""

from typing import Any

import msgspec

from ...engine.core.errors import InvalidRequest
from ..tools import ChosenFunction, Tool, ToolChoice, ToolFunction

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessageTool(msgspec.Struct, kw_only=True):
    """A tool that the model may use. `cache_control` and the like are without effect."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessageToolChoice(msgspec.Struct, kw_only=True):
    """auto, any, none, or one tool by name."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def chat_tools(tools: list[MessageTool] | None) -> list[Tool] | None:
    """Raises InvalidRequest naming the field."""
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())] or None


def chat_choice(choice: MessageToolChoice | None) -> str | ToolChoice | None:
    """Raises InvalidRequest naming the field."""
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequest("tool_choice.name is required.", param="tool_choice.name")
        return ToolChoice(function=ChosenFunction(name=choice.name))
    if choice.type not in _CHOICES:
        raise InvalidRequest(
            f"tool_choice.type must be one of {', '.join(_CHOICES)}, tool, not {choice.type[:64]!r}.",
            param="tool_choice.type",
        )
    return _CHOICES[choice.type]


def _tool(tool: MessageTool, where: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{where}.type must be 'custom', not {str(tool.type)[:64]!r}: this server runs no tools of its own.",
            param=f"{where}.type",
        )
    if tool.input_schema is None:
        raise InvalidRequest(f"{where}.input_schema is required.", param=f"{where}.input_schema")
    return Tool(
        function=ToolFunction(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        )
    )
