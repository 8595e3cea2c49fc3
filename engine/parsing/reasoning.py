"""Reasoning: what stands between `<think>` and `</think>` at the front of an answer.

Pure. Space around the reasoning belongs to nobody. Only one stretch at the front counts: marks later in the text are
text.
"""

from typing import ClassVar

import attrs

from .deltas import Content, Delta, Reasoning
from .search import MarkerSearch

THINK, THINK_END = "<think>", "</think>"


@attrs.frozen(kw_only=True)
class ReasoningFormat:
    """How a family of models thinks."""

    name: str
    always: bool
    """It thinks from the first token on, unless the prompt says that it has done so already. Otherwise it does where
    the prompt ends with the opening mark, or the answer begins with it."""

    start: ClassVar[str] = THINK
    end: ClassVar[str] = THINK_END

    def parser(self, *, inside: bool) -> "ReasoningParser":
        """For one answer; `inside`: it goes on with reasoning."""
        return ReasoningParser(inside=inside)


QWEN3 = ReasoningFormat(name="qwen3", always=False)
DEEPSEEK_R1 = ReasoningFormat(name="deepseek_r1", always=True)


class ReasoningParser:
    """Splits a text into deltas of reasoning and the text behind it, which it gives as content."""

    def __init__(self, *, inside: bool) -> None:
        self._state = "front"
        """front: the opening mark may come; inside; behind: space is dropped; after."""
        self._starts_inside = inside
        self._held: list[str] = []
        """In front: all there is; inside: space that may be the last."""
        self._num_matched = 0
        self._search = MarkerSearch(THINK_END)
        self._has_reasoned = False

    @property
    def is_over(self) -> bool:
        """All that comes is content."""
        return self._state == "after"

    def push(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        if text and self._state == "front":
            text = self._push_front(text)
        if text and self._state == "inside":
            text = self._push_inside(text, deltas)
        if text and self._state == "behind":
            text = text.lstrip()
            if text:
                self._state = "after"
        if text and self._state == "after":
            deltas.append(Content(text))
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._state == "front":
            held = "".join(self._held)
            self._held.clear()
            if self._starts_inside:
                self._reason(held, deltas)
            elif held:
                deltas.append(Content(held))
        elif self._state == "inside":
            self._reason(self._search.flush(), deltas)
        return deltas

    def _push_front(self, text: str) -> str:
        for place, character in enumerate(text):
            if character == THINK[self._num_matched]:
                self._num_matched += 1
            elif self._num_matched or not character.isspace():
                self._state = "inside" if self._starts_inside else "after"
                held = "".join(self._held)
                self._held.clear()
                return held + text[place:]
            self._held.append(character)
            if self._num_matched == len(THINK):
                self._held.clear()
                self._state = "inside"
                return text[place + 1 :]
        return ""

    def _push_inside(self, text: str, deltas: list[Delta]) -> str:
        shown, marker, rest = self._search.push(text)
        self._reason(shown, deltas)
        if marker is not None:
            self._state = "behind"
        return rest

    def _reason(self, text: str, deltas: list[Delta]) -> None:
        """More of it, without the space at its front and its end."""
        if not self._has_reasoned:
            text = text.lstrip()
        stripped = text.rstrip()
        if stripped:
            deltas.append(Reasoning("".join(self._held) + stripped))
            self._held.clear()
            self._has_reasoned = True
        if self._has_reasoned and len(stripped) < len(text):
            self._held.append(text[len(stripped) :])
