"""The laws that every parser keeps: how a text is cut does not matter, half a marker is never shown, work is linear."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.parsing import TOOL_FORMATS, AnswerParser, Content, collect, merged
from triolet.engine.parsing.reasoning import DEEPSEEK_R1, QWEN3, ReasoningParser

from .test_formats import BROKEN, CALLS, CUT_OFF, NO_CALLS
from .texts import FUNCTIONS, deltas_of, new_parser

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", '{"name": "now", "arguments": {', '"city": "Paris"', "}", "}}", "]", "[", ","),
    *("<|python_tag|>", '{"name": "get_weather", "parameters": ', "[TOOL_CALLS]", "now[ARGS]", "[CALL_ID]", "now"),
    *("<function=now>", "<parameter=days>", "<parameter=city>", "</parameter>", "</function>", "<function=", ">"),
    *("[now(", "a=", "'x'", ")", "True", "-1.5e3", '"\\u00e9"', "\\", '"', "\n", "  ", "text", "<think>", "</think>"),
    *("é", "<", "(", "; "),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.sampled_from([text for _, text, *_ in (*CALLS, *NO_CALLS, *CUT_OFF, *BROKEN)]),
)
REASONINGS: list[Callable[[], ReasoningParser | None]] = [
    lambda: None,
    lambda: QWEN3.parser(inside=False),
    lambda: DEEPSEEK_R1.parser(inside=True),
]


@pytest.mark.parametrize("format", TOOL_FORMATS)
@given(text=TEXTS, data=st.data())
def test_how_a_text_is_cut_does_not_matter(format: str, text: str, data: st.DataObject) -> None:
    """Pieces of any lengths give what the whole text gives, in the same order."""
    reasoning = data.draw(st.sampled_from(REASONINGS))
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    whole = merged(deltas_of(new_parser(format, reasoning=reasoning()), [text]))
    assert merged(deltas_of(new_parser(format, reasoning=reasoning()), pieces)) == whole
    assert merged(deltas_of(new_parser(format, reasoning=reasoning()), list(text))) == whole


@pytest.mark.parametrize("format", TOOL_FORMATS)
@given(text=TEXTS)
def test_text_without_a_call_is_content_to_the_letter(format: str, text: str) -> None:
    """Nothing is lost but what belongs to calls."""
    parsed = collect(deltas_of(new_parser(format), [text]))
    if not parsed.calls:
        assert parsed.content == text


@pytest.mark.parametrize(("format", "text", "arguments"), [(f, t, a) for f, t, _, a in CALLS])
def test_nothing_of_a_marker_is_shown_on_the_way(format: str, text: str, arguments: list[str]) -> None:
    """At every moment of a stream the content is a beginning of the content in the end."""
    parser = new_parser(format)
    final = collect(deltas_of(new_parser(format), [text])).content
    shown = ""
    for character in text:
        shown += "".join(delta.text for delta in parser.push(character) if isinstance(delta, Content))
        assert final.startswith(shown)


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
), indent=st.sampled_from([None, 2]), ascii=st.booleans())  # fmt: skip
def test_any_arguments_come_through(value: Any, indent: int | None, ascii: bool) -> None:
    """Whatever JSON the model writes is passed on to the letter."""
    arguments = json.dumps({"v": value}, indent=indent, ensure_ascii=ascii)
    text = f'<tool_call>\n{{"name": "now", "arguments": {arguments}}}\n</tool_call>'
    (call,) = collect(deltas_of(new_parser("hermes"), list(text))).calls
    assert call.arguments == arguments


def _num_lines(work: Callable[[], object]) -> int:
    """How many lines of the parsers run."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


ADVERSARIES = [
    *(
        "<",
        "<tool_call",
        "<tool_call>",
        "<tool_call>{",
        '<tool_call>{"name": "',
        '{"',
        " ",
        "\n<",
        "<think>",
        "</think",
    ),
    *('{"name": "now", "parameters": {', "[", "[[", "[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]now[", "<function="),
    *(
        "[now(",
        "[now(a='\\",
        "[now(a=[",
        "<function=now>",
        "<tool_call><function=now><parameter=",
        "</parameter",
        "\\u1",
    ),
]
FRONTS = [
    "",
    '<tool_call>{"name": "now", "arguments": {"a": "',
    "[TOOL_CALLS]now[ARGS]{",
    "[now(a='",
    "<tool_call><function=now><parameter=city>",
]
SMALL, LARGE = 1_000, 2_000


@pytest.mark.parametrize("format", TOOL_FORMATS)
@pytest.mark.parametrize("front", FRONTS)
def test_twice_the_text_is_twice_the_work(format: str, front: str) -> None:
    """Counted in lines of code, for texts that are a marker, or half a one, again and again; whole, and by threes."""

    def run(unit: str, size: int, piece: int) -> None:
        text = front + unit * (size // len(unit))
        parser = AnswerParser(reasoning=QWEN3.parser(inside=False), tools=TOOL_FORMATS[format].parser(FUNCTIONS))
        for start in range(0, len(text), piece):
            parser.push(text[start : start + piece])
        parser.finish()

    for unit in ADVERSARIES:
        for piece in (3, LARGE):
            small, large = (_num_lines(lambda s=size, u=unit, p=piece: run(u, s, p)) for size in (SMALL, LARGE))  # type: ignore[misc]
            assert large <= 2.2 * small + 200, (unit, piece)
            assert large <= 60 * LARGE, (unit, piece)


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_a_mebibyte_is_parsed(format: str) -> None:
    """All of it comes out again, as content or as arguments."""
    for unit in ("<tool_call>", '{"name": "', "[TOOL_CALLS]", "[now("):
        text = unit * (2**20 // len(unit))
        parsed = collect(deltas_of(new_parser(format), [text]))
        assert parsed.content or parsed.calls
