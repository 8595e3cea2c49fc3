"""Tools as the Responses API has them: what is one level deeper in a chat stands flat here.

Pure. Only functions can be called; whatever the server itself would have to run is refused by name.
"""

from typing import Any

import msgspec

from ...engine.core.errors import InvalidRequest
from ..tools import CHOICES, ChosenFunction, Tool, ToolChoice, ToolFunction


class ResponseTool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, kw_only=True):
    """One of the tools."""

    type: str
    name: str | None = None


class ResponseToolChoice(msgspec.Struct, kw_only=True):
    """The one function that must be called (`function`), or those that may or must be (`allowed_tools`)."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[NamedTool] | None = None


def chat_tools(
    tools: list[ResponseTool] | None, choice: str | ResponseToolChoice | None
) -> tuple[list[Tool] | None, str | ToolChoice | None]:
    """The tools of a chat, and its choice among them. Raises InvalidRequest naming the field."""
    converted = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())] or None
    if choice is None or isinstance(choice, str):
        return converted, choice
    if choice.type == "function":
        if choice.name is None:
            raise InvalidRequest("tool_choice.name is required.", param="tool_choice.name")
        return converted, ToolChoice(function=ChosenFunction(name=choice.name))
    if choice.type != "allowed_tools":
        raise InvalidRequest(
            f"tool_choice.type must be function or allowed_tools, not {choice.type[:64]!r}: only functions can be "
            "called.",
            param="tool_choice.type",
        )
    return _allowed(converted or [], choice), choice.mode


def echoed(tools: list[ResponseTool] | None) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(tool) for tool in tools or ()]


def _tool(tool: ResponseTool, where: str) -> Tool:
    if tool.type != "function":
        raise InvalidRequest(
            f"{where}.type must be 'function', not {tool.type[:64]!r}: only functions can be called.",
            param=f"{where}.type",
        )
    if tool.name is None:
        raise InvalidRequest(f"{where}.name is required.", param=f"{where}.name")
    return Tool(
        function=ToolFunction(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
    )


def _allowed(tools: list[Tool], choice: ResponseToolChoice) -> list[Tool] | None:
    """Those of the tools that the choice allows; the model is told of no others."""
    if choice.mode not in CHOICES[1:]:
        raise InvalidRequest(
            f"tool_choice.mode must be one of {', '.join(CHOICES[1:])}, not {str(choice.mode)[:64]!r}.",
            param="tool_choice.mode",
        )
    names = {tool.function.name for tool in tools}
    for index, named in enumerate(choice.tools or ()):
        if named.type != "function" or named.name not in names:
            where = f"tool_choice.tools[{index}]"
            raise InvalidRequest(f"{where} must name one of the tools.", param=where)
    allowed = {named.name for named in choice.tools or ()}
    return [tool for tool in tools if tool.function.name in allowed] or None
