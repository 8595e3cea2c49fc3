"""Parsing answers: from the text that a model writes to reasoning, content and tool calls, piece by piece.

Pure: the standard library and attrs. For every surface alike, over HTTP or not. One file for each format.

    push(text) -> list[Delta]      what these characters settle; half a marker is never shown
    finish()   -> list[Delta]      the text is over: what was held back

It promises:

- however a text is cut into pieces, the deltas joined (`merged`) are the same;
- the work is linear in the length of the text, whatever the text is: no pattern backtracks, nothing is looked at again;
- no text raises. What looks like a call and is none stays content.

`choose.py` picks the formats, by name or from a chat template; `answer.py` puts both parsers together.
"""

from .answer import AnswerParser
from .calls import Function, ToolFormat
from .choose import REASONING_FORMATS, TOOL_FORMATS, AnswerFormats, formats_of
from .deltas import Call, CallArguments, CallStart, Content, Delta, Parsed, Reasoning, collect, merged
from .reasoning import ReasoningFormat

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "AnswerFormats",
    "AnswerParser",
    "Call",
    "CallArguments",
    "CallStart",
    "Content",
    "Delta",
    "Function",
    "Parsed",
    "Reasoning",
    "ReasoningFormat",
    "ToolFormat",
    "collect",
    "formats_of",
    "merged",
]
