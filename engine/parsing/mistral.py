"""Mistral: `[TOOL_CALLS]` and then a list `[{"name": "f", "arguments": {…}}]`, or, since 2025, `f[ARGS]{…}` for each.

Pure. The ids of calls have nine letters and digits: Mistral's templates refuse others.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Emitter, Function, ToolFormat, arguments_of, calls_of
from .deltas import Delta
from .json_call import JsonCall
from .json_value import SPACE, JsonValue, Step
from .search import MarkerSearch

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_MOST_NAME = 256


class MistralFormat(ToolFormat):
    """See the module."""

    name = "mistral"
    markers = (MARK, ARGS, CALL_ID)

    def __init__(self, *, named: bool = False) -> None:
        """`named`: the model writes `f[ARGS]{…}`; both are read."""
        self._named = named

    def parser(self, functions: Sequence[Function], *, most_calls: int | None = None) -> "MistralParser":
        out = Emitter(most_calls=most_calls, new_id=lambda: uuid.uuid4().hex[:9])
        return MistralParser({function.name for function in functions}, out)

    def forced(self, functions: Sequence[Function], *, several: bool) -> dict[str, Any]:
        separator = "" if self._named else ", "
        tags = calls_of([self._tag(function) for function in functions], separator=separator, several=several)
        return tags if self._named else {"type": "tag", "begin": f"{MARK}[", "content": tags, "end": "]"}

    def offered(self, functions: Sequence[Function]) -> dict[str, Any]:
        tags = [self._tag(function, loose=True) for function in functions]
        if self._named:
            return {"type": "triggered_tags", "triggers": [MARK], "tags": tags}
        several = {"type": "tags_with_separator", "tags": tags, "separator": ", ", "at_least_one": True}
        tag = {"type": "tag", "begin": f"{MARK}[", "content": several, "end": "]"}
        return {"type": "triggered_tags", "triggers": [MARK], "tags": [tag]}

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._named:
            return f"{MARK}{name}{ARGS}{json.dumps(arguments, ensure_ascii=False)}"
        return f"{MARK}[{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}]"

    def _tag(self, function: Function, *, loose: bool = False) -> dict[str, Any]:
        begin = f'{{"name": {json.dumps(function.name)}, "arguments": '
        return {
            "type": "tag",
            "begin": f"{MARK}{function.name}{ARGS}" if self._named else begin,
            "content": arguments_of(function, loose=loose),
            "end": "" if self._named else "}",
        }


class MistralParser:
    """States: content; front (behind the mark); list, object and between (of a list); name and value (with ARGS);
    broken, where the rest belongs to arguments that are no JSON."""

    def __init__(self, names: set[str], out: Emitter) -> None:
        self._names = names
        self._out = out
        self._search = MarkerSearch(MARK)
        self._state = "content"
        self._held: list[str] = []
        """From the mark on, or from a comma, while it may be no call."""
        self._call: JsonCall | None = None
        self._is_list = False
        self._name: list[str] = []
        self._word: list[str] | None = None
        """Inside brackets behind a name."""
        self._is_id = False
        """Behind CALL_ID."""
        self._value = JsonValue()

    def push(self, text: str) -> list[Delta]:
        while text:
            match self._state:
                case "content":
                    text = self._push_content(text)
                case "object":
                    text = self._push_object(text)
                case "value":
                    text = self._push_value(text)
                case "broken":
                    self._out.arguments(text)
                    text = ""
                case _:
                    text = self._push_between(text)
        return self._out.take()

    def finish(self) -> list[Delta]:
        if self._state == "content":
            self._out.content(self._search.flush())
        elif self._state == "object" and self._call is not None:
            self._call.finish()
        self._give_up()
        return self._out.finish()

    def _give_up(self) -> None:
        """What is held is no call."""
        self._out.content("".join(self._held))
        self._held.clear()
        self._state = "content"

    def _push_content(self, text: str) -> str:
        shown, marker, rest = self._search.push(text)
        self._out.content(shown)
        if marker is not None:
            self._held.append(marker)
            self._state = "front"
        return rest

    def _push_between(self, text: str) -> str:
        """Front, between and name: character by character, all of them held."""
        for place, character in enumerate(text):
            if not self._take(character):
                self._give_up()
                return text[place:]
            if self._state in ("object", "value", "content"):
                return text[place if self._state != "content" else place + 1 :]
            self._held.append(character)
        return ""

    def _take(self, character: str) -> bool:
        """False: this makes it no call."""
        if self._state == "front":
            if character in SPACE:
                return True
            if character == "[":
                self._state, self._is_list = "list", True
                return True
            if character == "{":
                self._begin_object(is_list=False)
                return True
            self._state, self._name, self._word, self._is_id = "name", [], None, False
        elif self._state in ("list", "between"):
            if character == "{" and (self._state == "list" or "," in self._held):
                self._begin_object(is_list=True)
                return True
            if self._state == "between" and character == "]":
                self._held.clear()
                self._state = "content"
                return True
            comma = self._state == "between" and character == "," and "," not in self._held
            return character in SPACE or comma
        return self._take_in_name(character)

    def _begin_object(self, *, is_list: bool) -> None:
        self._call = JsonCall(self._out, self._names, held="".join(self._held))
        self._held.clear()
        self._state, self._is_list = "object", is_list

    def _push_object(self, text: str) -> str:
        assert self._call is not None
        step, length = self._call.push(text)
        if step is not Step.MORE:
            call, self._call = self._call, None
            if call.is_complete:
                self._state = "between" if self._is_list else "content"
            else:
                self._state = "broken" if call.is_call else "content"
        return text[length:]

    def _take_in_name(self, character: str) -> bool:
        if len(self._held) > _MOST_NAME:
            return False
        if self._word is not None:
            self._word.append(character)
            if character != "]":
                return True
            word, self._word = "".join(self._word), None
            self._is_id = word == CALL_ID
            return word in (ARGS, CALL_ID)
        if character == "[":
            self._word = ["["]
        elif character == "{":
            name = "".join(self._name).strip()
            if name not in self._names:
                return False
            self._held.clear()
            self._out.call(name)
            self._state, self._value = "value", JsonValue()
        elif not self._is_id:
            self._name.append(character)
        return True

    def _push_value(self, text: str) -> str:
        for place, character in enumerate(text):
            step = self._value.take(character)
            if step is not Step.MORE:
                end = place + (step is Step.DONE)
                self._out.arguments(text[:end])
                self._state = "content" if step is Step.DONE else "broken"
                return text[end:]
        self._out.arguments(text)
        return ""
