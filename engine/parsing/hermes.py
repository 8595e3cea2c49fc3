"""Hermes: `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`, as Hermes and Qwen 2 to 3 write it.

Pure. Also what a model is told to write whose chat template knows no tools.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Emitter, Function, ToolFormat, arguments_of, calls_of
from .deltas import Delta
from .json_call import JsonCall
from .json_value import Step
from .search import MarkerSearch

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a model writes it."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


class HermesFormat(ToolFormat):
    """See the module."""

    name = "hermes"
    markers = (OPEN, CLOSE)

    def parser(self, functions: Sequence[Function], *, most_calls: int | None = None) -> "HermesParser":
        return HermesParser({function.name for function in functions}, Emitter(most_calls=most_calls))

    def forced(self, functions: Sequence[Function], *, several: bool) -> dict[str, Any]:
        return calls_of([_tag(function) for function in functions], separator="\n", several=several)

    def offered(self, functions: Sequence[Function]) -> dict[str, Any]:
        tags = [_tag(function, loose=True) for function in functions]
        return {"type": "triggered_tags", "triggers": [OPEN], "tags": tags}


def _tag(function: Function, *, loose: bool = False) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'{OPEN}\n{{"name": {json.dumps(function.name)}, "arguments": ',
        "content": arguments_of(function, loose=loose),
        "end": f"}}\n{CLOSE}",
    }


class HermesParser:
    """A call whose arguments break off being JSON gets the rest as it is, up to the closing marker."""

    def __init__(self, names: set[str], out: Emitter) -> None:
        self._names = names
        self._out = out
        self._search = MarkerSearch(OPEN, CLOSE)
        self._closing = MarkerSearch(CLOSE)
        self._call: JsonCall | None = None
        self._is_broken = False
        self._is_open = False
        """A call is complete, and its closing marker has not come."""

    def push(self, text: str) -> list[Delta]:
        while text:
            if self._call is not None:
                text = self._push_call(self._call, text)
            elif self._is_broken:
                text = self._push_broken(text)
            else:
                text = self._push_content(text)
        return self._out.take()

    def finish(self) -> list[Delta]:
        if self._call is not None:
            self._call.finish()
        elif self._is_broken:
            self._out.arguments(self._closing.flush())
        else:
            self._out.content(self._search.flush())
        return self._out.finish()

    def _push_content(self, text: str) -> str:
        shown, marker, rest = self._search.push(text)
        if shown.strip():
            self._is_open = False
        self._out.content(shown)
        if marker == OPEN:
            self._call = JsonCall(self._out, self._names, held=OPEN)
        elif marker == CLOSE and not self._is_open:
            self._out.content(CLOSE)
        if marker is not None:
            self._is_open = False
        return rest

    def _push_call(self, call: JsonCall, text: str) -> str:
        step, length = call.push(text)
        if step is not Step.MORE:
            self._call = None
            self._is_open = call.is_complete
            self._is_broken = call.is_call and not call.is_complete
        return text[length:]

    def _push_broken(self, text: str) -> str:
        shown, marker, rest = self._closing.push(text)
        self._out.arguments(shown)
        self._is_broken = marker is None
        return rest
