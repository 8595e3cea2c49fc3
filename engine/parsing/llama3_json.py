"""Llama 3: the whole answer is `{"name": "f", "parameters": {…}}`, or several with `;` between them, or follows on
`<|python_tag|>`.

Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Emitter, Function, ToolFormat, arguments_of, calls_of
from .deltas import Delta
from .json_call import JsonCall
from .json_value import Step
from .search import MarkerSearch

PYTHON_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;,"


class Llama3JsonFormat(ToolFormat):
    """See the module."""

    name = "llama3_json"
    markers = (PYTHON_TAG,)

    def parser(self, functions: Sequence[Function], *, most_calls: int | None = None) -> "Llama3JsonParser":
        return Llama3JsonParser({function.name for function in functions}, Emitter(most_calls=most_calls))

    def forced(self, functions: Sequence[Function], *, several: bool) -> dict[str, Any]:
        return calls_of([_tag(function) for function in functions], separator="; ", several=several)

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def _tag(function: Function) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'{{"name": {json.dumps(function.name)}, "parameters": ',
        "content": arguments_of(function),
        "end": "}",
    }


class Llama3JsonParser:
    """A brace at the front or behind the tag may open a call, one anywhere else is content. What follows on arguments
    that are no JSON belongs to them."""

    def __init__(self, names: set[str], out: Emitter) -> None:
        self._names = names
        self._out = out
        self._search = MarkerSearch(PYTHON_TAG)
        self._call: JsonCall | None = None
        self._may_begin = True
        self._is_broken = False
        self._held: list[str] = []
        """What stands before a brace that may come: the tag, or what separates calls."""

    def push(self, text: str) -> list[Delta]:
        while text:
            if self._call is not None:
                text = self._push_call(self._call, text)
            elif self._is_broken:
                self._out.arguments(text)
                text = ""
            elif self._may_begin:
                text = self._push_front(text)
            else:
                text = self._push_content(text)
        return self._out.take()

    def finish(self) -> list[Delta]:
        if self._call is not None:
            self._call.finish()
        elif self._may_begin:
            self._out.content("".join(self._held))
        else:
            self._out.content(self._search.flush())
        return self._out.finish()

    def _push_front(self, text: str) -> str:
        between = _BETWEEN if self._out.num_calls else " \t\r\n"
        rest = text.lstrip(between)
        self._held.append(text[: len(text) - len(rest)])
        if not rest:
            return ""
        self._may_begin = False
        held = "".join(self._held)
        self._held.clear()
        if rest[0] == "{":
            self._call = JsonCall(self._out, self._names, held=held, needs_arguments=True)
        else:
            self._out.content(held)
        return rest

    def _push_content(self, text: str) -> str:
        shown, marker, rest = self._search.push(text)
        self._out.content(shown)
        if marker is not None:
            self._may_begin = True
            self._held.append(marker)
        return rest

    def _push_call(self, call: JsonCall, text: str) -> str:
        step, length = call.push(text)
        if step is not Step.MORE:
            self._call = None
            self._is_broken = call.is_call and not call.is_complete
            self._may_begin = call.is_complete
        return text[length:]
