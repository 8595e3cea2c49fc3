"""Stop strings: the first complete one ends the text, and nothing of it is ever shown."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.stop import StopMatcher


def run(stop: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    """The text shown in the end, and the stop string met."""
    matcher = StopMatcher(stop)
    shown = ""
    for piece in pieces:
        text, met = matcher.push(piece)
        shown += text
        if met is not None:
            return shown, met
    return shown + matcher.flush(), None


def naive(stop: Sequence[str], text: str) -> tuple[str, str | None]:
    """The same by looking at every beginning of the text anew."""
    for end in range(1, len(text) + 1):
        met = [each for each in stop if text[:end].endswith(each)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


@given(STOPS, st.lists(st.text("abc", max_size=4), max_size=12))
def test_the_answer_is_that_of_a_search_in_the_whole_text(stop: list[str], pieces: list[str]) -> None:
    """Whatever the stop strings and however the text is cut, the result equals the naive search."""
    assert run(stop, pieces) == naive(stop, "".join(pieces))


@given(STOPS, st.lists(st.text("abc", max_size=4), max_size=12))
def test_no_character_of_a_stop_string_is_ever_shown(stop: list[str], pieces: list[str]) -> None:
    """What has been shown at any moment is a beginning of what is shown in the end."""
    final, _ = naive(stop, "".join(pieces))
    matcher, shown = StopMatcher(stop), ""
    for piece in pieces:
        text, met = matcher.push(piece)
        shown += text
        assert final.startswith(shown)
        if met is not None:
            return


@given(STOPS, st.lists(st.text("abc", max_size=4), max_size=12))
def test_no_more_is_held_back_than_may_become_a_stop_string(stop: list[str], pieces: list[str]) -> None:
    """The text held back is the longest end of the text that begins a stop string."""
    matcher, shown, seen = StopMatcher(stop), "", ""
    for piece in pieces:
        text, met = matcher.push(piece)
        if met is not None:
            return
        shown, seen = shown + text, seen + piece
        held = [each[:n] for each in stop for n in range(len(each)) if seen.endswith(each[:n])]
        assert seen == shown + max(held, key=len)


@pytest.mark.parametrize(
    ("stop", "pieces", "expected"),
    [
        (["END"], ["the E", "N", "D and more"], ("the ", "END")),
        (["END"], ["the E", "N", "T"], ("the ENT", None)),
        (["END"], ["the EN"], ("the EN", None)),
        (["aab"], ["aaa", "ab"], ("aa", "aab")),
        (["abcd", "bc"], ["abcd"], ("a", "bc")),
        (["bc", "abc"], ["xabc"], ("x", "abc")),
        (["。"], ["句", "子。后"], ("句子", "。")),
    ],
)
def test_examples(stop: list[str], pieces: list[str], expected: tuple[str, str | None]) -> None:
    """A stop string over several pieces, one that does not complete, one that the end cuts off, and several at once."""
    assert run(stop, pieces) == expected


def test_a_huge_stop_string_costs_no_more_than_the_text() -> None:
    """A million characters that nearly match, one by one, against a stop string as long, are done in linear time."""
    matcher = StopMatcher(["a" * 1_000_000 + "b"])
    shown = sum(len(matcher.push("a")[0]) for _ in range(300_000))
    assert shown == 0
    assert len(matcher.push("c")[0]) == 300_001
