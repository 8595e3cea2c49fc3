"""What all formats of tool calls have in common: the functions, the protocols, and the way out of a parser.

Pure.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import attrs

from .deltas import CallArguments, CallStart, Content, Delta

MAX_HELD = 256 * 1024
"""Characters of what may yet be a call, before its name and the beginning of its arguments are there; a longer one is
content."""


@attrs.frozen(kw_only=True)
class Function:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] = attrs.field(factory=dict, eq=False)
    """The JSON schema of its arguments, an object."""
    strict: bool = False
    """Its arguments must keep to the schema, also where the model need not call anything."""
    description: str | None = attrs.field(default=None, eq=False)


class ToolParser(Protocol):
    """Finds calls in one answer's text."""

    def push(self, text: str, /) -> list[Delta]:
        """What these characters settle."""

    def finish(self) -> list[Delta]:
        """The text is over."""


def new_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


class ToolFormat(ABC):
    """How a family of models writes calls: reads it, and says it as a grammar.

    Grammars are formats of xgrammar's structural tags, as plain data.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    """Special tokens, in some vocabularies, that must be shown in the text for the parser to see them."""

    @abstractmethod
    def parser(self, functions: Sequence[Function], *, most_calls: int | None = None) -> ToolParser:
        """For one answer. Calls past `most_calls` are dropped."""

    @abstractmethod
    def forced(self, functions: Sequence[Function], *, several: bool) -> dict[str, Any]:
        """A grammar of one call to one of these functions or, with `several`, of one or more, and nothing else."""

    def offered(self, functions: Sequence[Function]) -> dict[str, Any] | None:
        """A grammar of any text in which every call keeps to its schema where the function is strict, else to JSON;
        None where calls begin with nothing that tells them from text."""
        return None

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model would write it, for templates that know no calls. Hermes' where a format has no own."""
        from .hermes import written

        return written(name, arguments)


MOST_FORCED = 16
"""Calls of an answer that must call: a model that does not know how to end goes on calling otherwise, to its last
token."""


def calls_of(tags: list[dict[str, Any]], *, separator: str, several: bool) -> dict[str, Any]:
    """The grammar of one of these calls or, with `several`, of 1 to `MOST_FORCED` with `separator` between them."""
    one = {"type": "or", "elements": tags} if len(tags) > 1 else tags[0]
    if not several:
        return one
    more = {"type": "sequence", "elements": [{"type": "const_string", "value": separator}, one]} if separator else one
    repeated = {"type": "repeat", "content": more, "min": 0, "max": MOST_FORCED - 1}
    return {"type": "sequence", "elements": [one, repeated]}


MAX_SPACE = 1
"""Characters of white space in a row between the tokens of JSON: a model that is held to JSON and does not know what to
write goes on with spaces otherwise, for ever."""


def arguments_of(function: Function, *, loose: bool = False) -> dict[str, Any]:
    """The grammar of a call's arguments: an object that the function's schema describes; without a schema, an empty
    one. `loose`: any object, unless the function is strict."""
    if loose and not function.strict:
        schema: dict[str, Any] = {"type": "object"}
    elif not function.parameters:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    else:
        schema = {"type": "object", **function.parameters}
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_SPACE}


class Emitter:
    """Collects deltas. Space between calls, and between content and a call, is nobody's: it is dropped.

    Nothing that is put in comes out twice, and all space that was held comes out in front of content that follows."""

    __slots__ = ("_deltas", "_is_behind_call", "_is_muted", "_most_calls", "_new_id", "_space", "num_calls")

    def __init__(self, *, most_calls: int | None = None, new_id: Callable[[], str] = new_call_id) -> None:
        self._deltas: list[Delta] = []
        self._space: list[str] = []
        self._most_calls = most_calls
        self._new_id = new_id
        self._is_muted = False
        self._is_behind_call = False
        self.num_calls = 0
        """Calls that have begun, those that were dropped among them."""

    def content(self, text: str) -> None:
        stripped = text.rstrip()
        if not stripped:
            if text:
                self._space.append(text)
            return
        front = "".join(self._space) + stripped
        self._space = [text[len(stripped) :]] if len(stripped) < len(text) else []
        self._deltas.append(Content(front.lstrip() if self._is_behind_call else front))
        self._is_behind_call = False

    def call(self, name: str) -> None:
        """A call begins: what was held back before it has been settled."""
        self._space.clear()
        self._is_behind_call = True
        self._is_muted = self._most_calls is not None and self.num_calls >= self._most_calls
        if not self._is_muted:
            self._deltas.append(CallStart(self.num_calls, name, self._new_id()))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the call that began last."""
        if text and not self._is_muted:
            self._deltas.append(CallArguments(self.num_calls - 1, text))

    def take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self) -> list[Delta]:
        """The text is over: space at its end belongs to it, where no call stands before."""
        if self._space and not self._is_behind_call:
            self._deltas.append(Content("".join(self._space)))
        self._space.clear()
        return self.take()
