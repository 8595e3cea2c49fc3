"""One answer's parsers in a row: reasoning first, then calls.

Pure.
"""

from .calls import ToolParser
from .deltas import Content, Delta
from .reasoning import ReasoningParser

PIECE = 512
"""A longer text is looked at by so many characters at a time: what is left of it is copied at every marker."""


class AnswerParser:
    """Both parsers, either of which may be missing. For one answer."""

    def __init__(self, *, reasoning: ReasoningParser | None = None, tools: ToolParser | None = None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[Delta]:
        """What these characters settle."""
        deltas: list[Delta] = []
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            if self._reasoning is None or self._reasoning.is_over:
                deltas += self._find_calls(piece)
            else:
                deltas += self._behind(self._reasoning.push(piece))
        return deltas

    def finish(self) -> list[Delta]:
        """The text is over."""
        deltas: list[Delta] = [] if self._reasoning is None else self._behind(self._reasoning.finish())
        return deltas + (self._tools.finish() if self._tools is not None else [])

    def _behind(self, deltas: list[Delta]) -> list[Delta]:
        found: list[Delta] = []
        for delta in deltas:
            found += self._find_calls(delta.text) if isinstance(delta, Content) else [delta]
        return found

    def _find_calls(self, text: str) -> list[Delta]:
        if self._tools is not None:
            return self._tools.push(text)
        return [Content(text)] if text else []
