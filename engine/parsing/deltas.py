"""What a parser says of an answer: content, reasoning, and calls, each of which begins once and then gets arguments.

Pure.
"""

from collections.abc import Iterable

import attrs


@attrs.frozen
class Content:
    """Text for the reader."""

    text: str


@attrs.frozen
class Reasoning:
    """Text that the model thinks in."""

    text: str


@attrs.frozen
class CallStart:
    """A call begins; its arguments follow. Calls count up from 0."""

    index: int
    name: str
    id: str = attrs.field(eq=False)


@attrs.frozen
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Delta = Content | Reasoning | CallStart | CallArguments


@attrs.frozen
class Call:
    """A whole call. `arguments` is JSON text; cut off where the answer was, and as the model wrote it where that is
    no JSON."""

    id: str = attrs.field(eq=False)
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class Parsed:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


def collect(deltas: Iterable[Delta]) -> Parsed:
    """All the deltas of an answer, put together."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        match delta:
            case Content():
                content.append(delta.text)
            case Reasoning():
                reasoning.append(delta.text)
            case CallStart():
                starts.append(delta)
            case CallArguments():
                arguments.setdefault(delta.index, []).append(delta.text)
    calls = (Call(start.id, start.name, "".join(arguments.get(start.index, ()))) for start in starts)
    return Parsed(content="".join(content), reasoning="".join(reasoning), calls=tuple(calls))


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same with neighbours of one kind joined: this does not depend on how the text was cut."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + delta.text)
        elif isinstance(delta, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + delta.text)
        elif isinstance(delta, CallArguments) and isinstance(last, CallArguments) and last.index == delta.index:
            result[-1] = CallArguments(delta.index, last.text + delta.text)
        else:
            result.append(delta)
    return result
