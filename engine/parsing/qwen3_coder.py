"""Qwen3-Coder: `<tool_call><function=f><parameter=city>Paris</parameter></function></tool_call>`.

Pure. Values are bare text: the function's schema says which of them are strings. One line end on either side of a
value is not part of it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Emitter, Function, ToolFormat, calls_of
from .deltas import Delta
from .parameters import Parameters, const, json_value, optional, sequence
from .search import MarkerSearch

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_MOST_NAME = 256


class Qwen3CoderFormat(ToolFormat):
    """See the module."""

    name = "qwen3_coder"
    markers = (OPEN, CLOSE)

    def parser(self, functions: Sequence[Function], *, most_calls: int | None = None) -> "Qwen3CoderParser":
        return Qwen3CoderParser({each.name: each.parameters for each in functions}, Emitter(most_calls=most_calls))

    def forced(self, functions: Sequence[Function], *, several: bool) -> dict[str, Any]:
        return calls_of([_tag(function) for function in functions], separator="\n", several=several)

    def offered(self, functions: Sequence[Function]) -> dict[str, Any]:
        tags = [_tag(function, loose=True) for function in functions]
        return {"type": "triggered_tags", "triggers": [OPEN], "tags": tags}

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = (
            f"{PARAMETER}{key}>\n{value if isinstance(value, str) else json.dumps(value)}\n{PARAMETER_END}\n"
            for key, value in arguments.items()
        )
        return f"{OPEN}\n{FUNCTION}{name}>\n{''.join(values)}{FUNCTION_END}\n{CLOSE}"


def _tag(function: Function, *, loose: bool = False) -> dict[str, Any]:
    if loose and not function.strict:
        content: dict[str, Any] = {"type": "any_text"}
    else:
        parameters = Parameters.of(function, Qwen3CoderFormat.name)
        content = sequence(
            [_parameter(*item) for item in parameters.required.items()]
            + [optional(_parameter(*item)) for item in parameters.optional.items()]
        )
    return {
        "type": "tag",
        "begin": f"{OPEN}\n{FUNCTION}{function.name}>\n",
        "content": content,
        "end": f"{FUNCTION_END}\n{CLOSE}",
    }


def _parameter(name: str, schema: Any) -> dict[str, Any]:
    value = _string(schema) if "string" in kinds_of(schema) else json_value(schema)
    return {"type": "tag", "begin": f"{PARAMETER}{name}>\n", "content": value, "end": f"\n{PARAMETER_END}\n"}


def _string(schema: Any) -> dict[str, Any]:
    """Bare text, as the schema wants it."""
    given = schema if isinstance(schema, Mapping) else {}
    values = given.get("enum", [given["const"]] if "const" in given else None)
    if values is not None:
        return {"type": "or", "elements": [const(value if isinstance(value, str) else str(value)) for value in values]}
    if "pattern" in given:
        return {"type": "regex", "pattern": given["pattern"]}
    if "minLength" in given or "maxLength" in given:
        return {"type": "regex", "pattern": f"[^<]{{{given.get('minLength', 0)},{given.get('maxLength', '')}}}"}
    return {"type": "any_text", "excludes": [PARAMETER_END]}


class Qwen3CoderParser:
    """States: content; front (between `<tool_call>` and the function's mark); name; inside (between parameters); key;
    value."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], out: Emitter) -> None:
        self._schemas = schemas
        self._out = out
        self._search = MarkerSearch(OPEN, CLOSE, FUNCTION)
        self._inside = MarkerSearch(PARAMETER, FUNCTION_END)
        self._value = MarkerSearch(PARAMETER_END)
        self._state = "content"
        self._held: list[str] = []
        self._num_matched = 0
        """Of FUNCTION, in front."""
        self._name: list[str] = []
        self._properties: Mapping[str, Any] = {}
        self._num_parameters = 0
        self._kinds: frozenset[str] = frozenset()
        self._text: list[str] = []
        """Of a value that is no plain string."""
        self._line_end = ""
        """At the end of a value, perhaps."""
        self._has_begun = False
        """The value: its first character has come."""
        self._is_open = False
        """A function has ended, and the closing mark has not come."""

    def push(self, text: str) -> list[Delta]:
        while text:
            match self._state:
                case "content":
                    text = self._push_content(text)
                case "front":
                    text = self._push_front(text)
                case "name" | "key":
                    text = self._push_name(text)
                case "inside":
                    text = self._push_inside(text)
                case _:
                    text = self._push_value(text)
        return self._out.take()

    def finish(self) -> list[Delta]:
        match self._state:
            case "content":
                self._out.content(self._search.flush())
            case "front" | "name":
                self._out.content("".join(self._held))
            case "value":
                # As far as it came, like any arguments that are cut off.
                self._add(self._value.flush())
        return self._out.finish()

    def _push_content(self, text: str) -> str:
        shown, marker, rest = self._search.push(text)
        if shown.strip():
            self._is_open = False
        self._out.content(shown)
        if marker in (OPEN, FUNCTION):
            self._held = [marker]
            self._state = "front" if marker == OPEN else "name"
            self._num_matched, self._name = 0, []
        elif marker == CLOSE and not self._is_open:
            self._out.content(CLOSE)
        if marker is not None:
            self._is_open = False
        return rest

    def _give_up(self, rest: str) -> str:
        self._out.content("".join(self._held))
        self._state = "content"
        return rest

    def _push_front(self, text: str) -> str:
        for place, character in enumerate(text):
            if character == FUNCTION[self._num_matched]:
                self._num_matched += 1
            elif self._num_matched or not character.isspace():
                return self._give_up(text[place:])
            self._held.append(character)
            if self._num_matched == len(FUNCTION):
                self._state, self._name = "name", []
                return text[place + 1 :]
        return ""

    def _push_name(self, text: str) -> str:
        """Of a function or a parameter, up to `>`."""
        for place, character in enumerate(text):
            if character == ">":
                name = "".join(self._name).strip()
                if self._state == "key":
                    self._begin_value(name)
                elif name in self._schemas:
                    self._begin_call(name)
                else:
                    return self._give_up(text[place:])
                return text[place + 1 :]
            if self._state == "name":
                if character in "<\n" or len(self._name) >= _MOST_NAME:
                    return self._give_up(text[place:])
                self._held.append(character)
            self._name.append(character)
        return ""

    def _begin_call(self, name: str) -> None:
        properties = self._schemas[name].get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._num_parameters = 0
        self._out.call(name)
        self._state = "inside"

    def _push_inside(self, text: str) -> str:
        _, marker, rest = self._inside.push(text)
        if marker == PARAMETER:
            self._state, self._name = "key", []
        elif marker == FUNCTION_END:
            self._out.arguments("}" if self._num_parameters else "{}")
            self._state, self._is_open = "content", True
        return rest

    def _begin_value(self, key: str) -> None:
        front = ", " if self._num_parameters else "{"
        self._out.arguments(f"{front}{json.dumps(key, ensure_ascii=False)}: ")
        self._num_parameters += 1
        self._kinds = kinds_of(self._properties.get(key))
        self._text, self._line_end, self._has_begun = [], "", False
        self._state = "value"
        if self._kinds == {"string"}:
            self._out.arguments('"')

    def _push_value(self, text: str) -> str:
        shown, marker, rest = self._value.push(text)
        self._add(shown)
        if marker is not None:
            self._out.arguments('"' if self._kinds == {"string"} else _as_json("".join(self._text), self._kinds))
            self._state = "inside"
        return rest

    def _add(self, text: str) -> None:
        """More of a value, without a line end at its front or its end."""
        if text and not self._has_begun:
            self._has_begun = True
            text = text.removeprefix("\n")
        text = self._line_end + text
        self._line_end = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if self._kinds == {"string"}:
            self._out.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._text.append(text)


def kinds_of(schema: object) -> frozenset[str]:
    """The types that a value may have; a string where the schema names none."""
    if not isinstance(schema, Mapping):
        return frozenset(("string",))
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list | tuple):
        return frozenset(each for each in kind if isinstance(each, str))
    if isinstance(values := schema.get("enum"), list | tuple):
        return frozenset("string" if isinstance(value, str) else "other" for value in values)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list | tuple):
            return frozenset().union(*map(kinds_of, parts))
    return frozenset(("other",)) if "$ref" in schema or "const" in schema else frozenset(("string",))


def _as_json(text: str, kinds: frozenset[str]) -> str:
    """The value as JSON; text that is no JSON of a kind that may come is a string."""
    stripped = text.strip()
    if "string" in kinds and stripped != "null":
        return json.dumps(text, ensure_ascii=False)
    python = {"True": "true", "False": "false", "None": "null"}
    stripped = python.get(stripped, stripped)
    try:
        json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return stripped


def _refuse(constant: str) -> None:
    raise ValueError(constant)
