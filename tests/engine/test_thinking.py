"""Where an answer's reasoning begins and ends, told from its tokens alone."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.core.thinking import Thinking, ThinkingTracker

BYTES = Thinking(
    start="<think>",
    end="</think>",
    start_token_ids=tuple(b"<think>"),
    end_token_ids=tuple(b"</think>"),
    budget=3,
    begins="inside",
)
"""Every byte is a token."""
SINGLE = Thinking(start="<think>", end="</think>", start_token_ids=(300,), end_token_ids=(301,), budget=3)
"""The marks are special tokens, which add nothing to a text."""


def text_of(token: int) -> bytes:
    return bytes([token]) if token < 256 else b""


def phases(thinking: Thinking, tokens: list[int]) -> list[str]:
    tracker = ThinkingTracker(thinking, text_of)
    return [tracker.take(token) for token in tokens]


@pytest.mark.parametrize(
    ("prompt", "always", "begins"),
    [
        ("assistant\n", False, "front"),
        ("assistant\n", True, "inside"),
        ("assistant\n<think>\n", False, "inside"),
        ("assistant\n<think>\n\n</think>\n\n", False, "over"),
        ("assistant\n<think>\n\n</think>\n\n", True, "over"),
    ],
)
def test_the_prompt_says_where_the_answer_begins(prompt: str, always: bool, begins: str) -> None:
    """By the mark at its very end; what stands further in front may be anybody's words."""
    thinking = Thinking(start="<think>", end="</think>", start_token_ids=(1,), end_token_ids=(2,), always=always)
    assert thinking.behind(prompt).begins == begins
    assert thinking.behind("x").behind(prompt).begins == ("inside" if always else "front")


def test_marks_of_one_token() -> None:
    """Space may come before the opening one; no text is needed to know them."""
    assert phases(SINGLE, [10, 300, 65, 301, 66]) == ["front", "inside", "inside", "inside", "over"]
    assert phases(SINGLE, [65, 300, 66]) == ["front", "over", "over"]


def test_marks_of_several_tokens() -> None:
    """Found in the text, wherever their tokens end."""
    tokens = list(b"\n<think>a</think>b")
    assert phases(BYTES, list(b"a</think>b"))[-2:] == ["inside", "over"]
    tracker = ThinkingTracker(attrs.evolve(SINGLE, budget=None), lambda token: bytes([token]))
    assert [tracker.take(token) for token in tokens][-1] == "over"
    assert tracker.num_tokens == len(b"a</think>")


@given(st.binary(max_size=20), st.integers(0, 6))
def test_the_budget_forces_the_closing_mark(reasoning: bytes, budget: int) -> None:
    """Whatever comes before it, after so many tokens nothing else may come."""
    tracker = ThinkingTracker(attrs.evolve(BYTES, budget=budget), text_of)
    said = []
    for token in reasoning + bytes(20):
        forced = tracker.forced()
        assert (forced is not None) == (tracker.phase == "inside" and len(said) >= budget)
        said.append(token if forced is None else forced)
        tracker.take(said[-1])
    assert tracker.phase == "over"
    assert bytes(said[budget : budget + 8]) == b"</think>"
    assert tracker.num_tokens == budget


@given(st.lists(st.sampled_from([*b"<think>/ ax", 300, 301]), max_size=30), st.data())
def test_a_tracker_made_anew_stands_where_the_old_one_stood(tokens: list[int], data: st.DataObject) -> None:
    """After a preemption nothing is known but the tokens."""
    thinking = data.draw(st.sampled_from([BYTES, SINGLE]))
    tracker = ThinkingTracker(thinking, text_of)
    for token in tokens:
        tracker.take(token)
    again = ThinkingTracker(thinking, text_of, tokens)
    assert (again.phase, again.num_tokens, again.forced(), again.opening()) == (
        tracker.phase,
        tracker.num_tokens,
        tracker.forced(),
        tracker.opening(),
    )


def test_the_opening_mark_may_come_token_by_token() -> None:
    """Where a grammar holds, it is the one other thing that may."""
    tracker = ThinkingTracker(attrs.evolve(BYTES, begins="front"), text_of)
    for token in b"<think>":
        assert tracker.opening() == token
        tracker.take(token)
    assert (tracker.phase, tracker.opening()) == ("inside", None)
    tracker = ThinkingTracker(attrs.evolve(BYTES, begins="front"), text_of, b"y")
    assert (tracker.phase, tracker.opening()) == ("over", None)
