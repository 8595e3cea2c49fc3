"""Pythonic: the whole answer is a list of calls as Python writes them, `[f(city="Paris"), g()]` (Llama 3.2 and 4).

Pure. Nothing is evaluated.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Emitter, Function, ToolFormat, calls_of
from .deltas import Delta
from .json_value import SPACE, Step
from .parameters import Parameters, const, json_value, optional, sequence
from .python_value import PythonValue

START, END = "<|python_start|>", "<|python_end|>"
_MOST_NAME = 256
_MOST_FIRST = 16
"""Optional parameters that may be the first that is given, where none is required."""


class PythonicFormat(ToolFormat):
    """See the module."""

    name = "pythonic"
    markers = ()

    def parser(self, functions: Sequence[Function], *, most_calls: int | None = None) -> "PythonicParser":
        return PythonicParser({function.name for function in functions}, Emitter(most_calls=most_calls))

    def forced(self, functions: Sequence[Function], *, several: bool) -> dict[str, Any]:
        tags = [
            {"type": "tag", "begin": f"{function.name}(", "content": _arguments(function), "end": ")"}
            for function in functions
        ]
        calls = calls_of(tags, separator=", ", several=several)
        return {"type": "tag", "begin": "[", "content": calls, "end": "]"}

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _arguments(function: Function) -> dict[str, Any]:
    """Required ones first, then optional ones, each kind in the order of the schema; values as JSON."""
    parameters = Parameters.of(function, PythonicFormat.name)

    def argument(name: str, schema: Any, front: str = "") -> list[dict[str, Any]]:
        return [const(f"{front}{name}="), json_value(schema)]

    def following(items: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
        return [optional(sequence(argument(name, schema, ", "))) for name, schema in items]

    rest = list(parameters.optional.items())
    if parameters.required:
        parts: list[dict[str, Any]] = []
        for name, schema in parameters.required.items():
            parts += argument(name, schema, ", " if parts else "")
        return sequence(parts + following(rest))
    firsts = [
        sequence(argument(name, schema) + following(rest[place + 1 :]))
        for place, (name, schema) in enumerate(rest[:_MOST_FIRST])
    ]
    return optional({"type": "or", "elements": firsts}) if firsts else sequence([])


class PythonicParser:
    """States: front; list (a name may come); name; inside (a keyword may come); keyword; value; behind (a value);
    between (calls); done, where all that follows is content; broken, where it belongs to arguments that are no JSON."""

    def __init__(self, names: set[str], out: Emitter) -> None:
        self._names = names
        self._out = out
        self._state = "front"
        self._held: list[str] = []
        self._word: list[str] = []
        self._num_arguments = 0
        self._value = PythonValue()

    def push(self, text: str) -> list[Delta]:
        for place, character in enumerate(text):
            if self._state not in ("done", "broken") and not self._take(character):
                self._break()
            if self._state == "done":
                self._out.content(text[place:])
                break
            if self._state == "broken":
                self._out.arguments(text[place:])
                break
        self._say()
        return self._out.take()

    def finish(self) -> list[Delta]:
        self._out.content("".join(self._held))
        self._held.clear()
        return self._out.finish()

    def _break(self) -> None:
        """The next character belongs to no call."""
        if self._state in ("inside", "keyword", "value", "behind"):
            self._say()
            self._state = "broken"
        else:
            self._out.content("".join(self._held))
            self._held.clear()
            self._state = "done"

    def _say(self) -> None:
        self._out.arguments(self._value.take_json())

    def _take(self, character: str) -> bool:
        if self._state == "value":
            step = self._value.take(character)
            if step is Step.BAD:
                return False
            if step is Step.MORE:
                return True
            self._say()
            self._state = "behind"
            if step is Step.DONE:
                return True
        if self._state in ("inside", "keyword", "behind"):
            return self._take_inside(character)
        self._held.append(character)
        if character in SPACE and self._state != "name":
            return True
        taken = self._take_outside(character)
        if not taken:
            self._held.pop()
        return taken

    def _take_outside(self, character: str) -> bool:
        """Of a call."""
        match self._state, character:
            case "front", "[":
                self._state = "list"
            case "list" | "name", _ if character.isalnum() or character in "_.-":
                if self._state == "list":
                    self._state, self._word = "name", []
                self._word.append(character)
                return len(self._word) <= _MOST_NAME
            case "name", "(":
                name = "".join(self._word)
                if name not in self._names:
                    return False
                self._out.call(name)
                self._held.clear()
                self._num_arguments = 0
                self._state = "inside"
            case "between", ",":
                self._state = "list"
            case "between", "]":
                self._held.clear()
                self._state = "ended"
            case _:
                return False
        return True

    def _take_inside(self, character: str) -> bool:
        if character in SPACE:
            return self._state != "keyword"
        if character == ")" and self._state != "keyword":
            self._out.arguments("}" if self._num_arguments else "{}")
            self._state = "between"
        elif self._state == "inside" and (character.isalpha() or character == "_"):
            self._state, self._word = "keyword", [character]
        elif self._state == "behind" and character == ",":
            self._state = "inside"
        elif self._state == "keyword" and character == "=":
            key = json.dumps("".join(self._word), ensure_ascii=False)
            self._out.arguments(f"{', ' if self._num_arguments else '{'}{key}: ")
            self._num_arguments += 1
            self._state, self._value = "value", PythonValue()
        elif self._state == "keyword" and (character.isalnum() or character == "_"):
            self._word.append(character)
            return len(self._word) <= _MOST_NAME
        else:
            return False
        return True
