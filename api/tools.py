"""Tools as chats send them: what they are, which of them may or must be called, and the constraint that follows.

All of it is checked before anything else is done with the request: a schema that is no schema is a 400 that names the
place.
"""

import re
from typing import Any, Literal

import attrs
import msgspec

from ..engine.core.errors import InvalidRequest
from ..engine.core.grammar import MAX_SOURCE_CHARACTERS, GrammarSpec
from ..engine.json_schema import why_not
from ..engine.parsing import Function, ToolFormat
from ..engine.parsing.schema_check import why_malformed

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
CHOICES = ("none", "auto", "required")


class ToolFunction(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments."""
    strict: bool | None = None
    """Hold its arguments to the schema, also where the model need not call it."""


class Tool(msgspec.Struct, kw_only=True):
    """A tool; only functions can be called."""

    function: ToolFunction
    type: str = "function"

    def as_template_reads(self) -> dict[str, Any]:
        function = self.function
        given: dict[str, Any] = {"name": function.name, "description": function.description or ""}
        return {
            "type": "function",
            "function": {**given, "parameters": function.parameters or {"type": "object", "properties": {}}},
        }


class ChosenFunction(msgspec.Struct, kw_only=True):
    """The name of a function."""

    name: str


class ToolChoice(msgspec.Struct, kw_only=True):
    """The one function that must be called."""

    function: ChosenFunction
    type: str = "function"


@attrs.frozen(kw_only=True)
class ToolUse:
    """The tools of a request that may be called."""

    tools: tuple[Tool, ...]
    functions: tuple[Function, ...]
    must: Literal["auto", "required", "named"]
    """With `named`, the function is the only one."""
    parallel: bool = True

    def constraint(self, format: ToolFormat, content: GrammarSpec | None) -> GrammarSpec | None:
        """What the answer must keep to, where the content is to keep to `content`. Raises InvalidRequest."""
        if self.must == "auto":
            return self._offered(format, content)
        if content is not None and content.param.startswith("structured_outputs"):
            raise InvalidRequest(
                "structured_outputs cannot be combined with a tool_choice that asks for a call.",
                param="structured_outputs",
            )
        self._check_enforceable(only_strict=False)
        several = self.must == "required" and self.parallel
        return _tag(format.forced(self.functions, several=several))

    def _offered(self, format: ToolFormat, content: GrammarSpec | None) -> GrammarSpec | None:
        if content is not None:
            said = _as_format(content)
            if said is None:
                return content
            self._check_enforceable(only_strict=False)
            return _tag({"type": "or", "elements": [said, format.forced(self.functions, several=self.parallel)]})
        if not any(function.strict for function in self.functions):
            return None
        self._check_enforceable(only_strict=True)
        offered = format.offered(self.functions)
        return None if offered is None else _tag(offered)

    def _check_enforceable(self, *, only_strict: bool) -> None:
        for index, function in enumerate(self.functions):
            if only_strict and not function.strict:
                continue
            if (reason := why_not(function.parameters)) is not None:
                where = f"tools[{index}].function.parameters"
                raise InvalidRequest(f"{where} cannot be enforced: {reason}.", param=where)


def _tag(format: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec.structural_tag({"type": "structural_tag", "format": format}, param="tools")


def _as_format(content: GrammarSpec) -> dict[str, Any] | None:
    """A constraint as a part of a structural tag; None where it has to stand alone."""
    match content.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": msgspec.json.decode(content.source)}
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "regex":
            return {"type": "regex", "pattern": content.source}
        case "ebnf":
            return {"type": "grammar", "grammar": content.source}
        case _:
            return None


def tool_use(
    tools: list[Tool] | None, choice: str | ToolChoice | None, parallel: bool | None, *, param: str = "tools"
) -> ToolUse | None:
    """None: nothing may be called. Raises InvalidRequest naming the field. `param`: what the tools' field is called."""
    if tools is None:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest(f"tool_choice is only allowed together with {param}.", param="tool_choice")
        return None
    if not tools:
        raise InvalidRequest(f"{param} must not be an empty list: leave it out to give none.", param=param)
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"{param} may hold at most {MAX_TOOLS} tools, not {len(tools)}.", param=param)
    functions = tuple(_function(tool, f"{param}[{index}]") for index, tool in enumerate(tools))
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = f"{param}[{index}].function.name"
            raise InvalidRequest(f"{where}: there is another function of the name {name!r}.", param=where)
    if len(msgspec.json.encode(tools)) > MAX_SOURCE_CHARACTERS:
        raise InvalidRequest(f"{param} may have {MAX_SOURCE_CHARACTERS} bytes of JSON in all.", param=param)
    use = ToolUse(tools=tuple(tools), functions=functions, must="auto", parallel=parallel is not False)
    return _chosen(use, "auto" if choice is None else choice, names)


def _chosen(use: ToolUse, choice: str | ToolChoice, names: list[str]) -> ToolUse | None:
    if isinstance(choice, ToolChoice):
        name = choice.function.name
        if choice.type != "function":
            raise InvalidRequest("tool_choice.type must be 'function'.", param="tool_choice.type")
        if name not in names:
            where = "tool_choice.function.name"
            raise InvalidRequest(f"{where} must be one of the tools, not {name[:64]!r}.", param=where)
        chosen = tuple(function for function in use.functions if function.name == name)
        return attrs.evolve(use, functions=chosen, must="named")
    match choice:
        case "none":
            return None
        case "auto" | "required":
            return attrs.evolve(use, must=choice)
    raise InvalidRequest(
        f"tool_choice must be one of {', '.join(CHOICES)}, or name a function, not {choice[:64]!r}.",
        param="tool_choice",
    )


def _function(tool: Tool, where: str) -> Function:
    if tool.type != "function":
        raise InvalidRequest(
            f"{where}.type must be 'function', not {tool.type[:64]!r}: only functions can be called.",
            param=f"{where}.type",
        )
    function = tool.function
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{where}.function.name must be 1 to 128 letters, digits, dots, dashes or underscores, "
            f"not {function.name[:64]!r}.",
            param=f"{where}.function.name",
        )
    parameters = function.parameters or {}
    if (found := why_malformed(parameters)) is not None:
        place = f"{where}.function.parameters{found[0]}"[:512]
        raise InvalidRequest(f"{place} {found[1]}.", param=place)
    return Function(
        name=function.name,
        parameters=parameters,
        strict=bool(function.strict),
        description=function.description,
    )
