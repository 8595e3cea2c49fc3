"""Reasoning, and how it stands before content and calls."""

import pytest

from triolet.engine.parsing import AnswerParser, Reasoning, collect
from triolet.engine.parsing.reasoning import QWEN3

from .texts import calls_of, deltas_of, new_parser

CASES = [
    (False, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    (True, "Hm.\n\nSo.\n</think>\n\nYes.", "Hm.\n\nSo.", "Yes."),
    (True, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    (False, "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
    (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    (False, "<thinking>Yes.", "", "<thinking>Yes."),
    (True, "Hm, and so on", "Hm, and so on", ""),
    (False, "<think>Hm.</think>A <think>b</think>", "Hm.", "A <think>b</think>"),
    (False, "", "", ""),
    (True, "</think>Yes.", "", "Yes."),
    (True, "<thi", "<thi", ""),
    (False, "\n<thi", "", "\n<thi"),
]


@pytest.mark.parametrize(("inside", "text", "reasoning", "content"), CASES)
@pytest.mark.parametrize("whole", [True, False])
def test_reasoning_is_told_from_content(inside: bool, text: str, reasoning: str, content: str, whole: bool) -> None:
    """At once and character by character."""
    parser = AnswerParser(reasoning=QWEN3.parser(inside=inside))
    parsed = collect(deltas_of(parser, [text] if whole else list(text)))
    assert (parsed.reasoning, parsed.content) == (reasoning, content)


def test_reasoning_is_streamed() -> None:
    """It is shown as it comes, but for space that may be its last."""
    parser = AnswerParser(reasoning=QWEN3.parser(inside=False))
    assert parser.push("<think>\nHm. ") == [Reasoning("Hm.")]
    assert parser.push("So") == [Reasoning(" So")]
    assert parser.push(" </thi") == []
    assert parser.push("s") == [Reasoning(" </this")]


def test_calls_are_looked_for_behind_the_reasoning() -> None:
    """One that the model thinks of is none."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parser = new_parser("hermes", reasoning=QWEN3.parser(inside=False))
    parsed = collect(deltas_of(parser, [f"<think>Perhaps {call}?</think>\n{call}"]))
    assert parsed.reasoning == f"Perhaps {call}?"
    assert (parsed.content, calls_of(parsed)) == ("", [("now", "{}")])
