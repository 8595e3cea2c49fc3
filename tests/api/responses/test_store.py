"""Stored responses: bounded by bytes and by age, chains kept together, nobody reads another's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import NotFound
from triolet.api.responses.store import MAX_TURNS, OVERHEAD_BYTES, ResponseStore, Stored
from triolet.engine.core.errors import InvalidRequest


def stored(size: int = 0, previous: str | None = None) -> Stored:
    """An entry that costs OVERHEAD_BYTES and `size`."""
    return Stored(body=b"x" * size, input_items=b"", output_items=b"", previous=previous)


def store(num_entries: float = 100, max_age_s: float = 60.0) -> ResponseStore:
    return ResponseStore(max_bytes=int(num_entries * OVERHEAD_BYTES), max_age_s=max_age_s)


def test_what_was_used_longest_ago_goes_first() -> None:
    """A new entry pushes out the oldest; one that was continued since is younger; one that was only read is not."""
    kept = store(3)
    for name in "abc":
        assert kept.put(("", name), stored(), now_s=0)
    kept.chain("", "a", now_s=1)
    assert kept.get(("", "b"), now_s=1) is not None
    kept.put(("", "d"), stored(), now_s=2)
    assert [name for name in "abcd" if kept.get(("", name), now_s=2)] == ["a", "c", "d"]


def test_age_counts_from_the_last_use() -> None:
    """An entry is let go when it was not used for the time that it may be kept, also where nobody asks for it."""
    kept = store(max_age_s=10)
    kept.put(("", "a"), stored(), now_s=0)
    kept.put(("", "b"), stored(), now_s=5)
    kept.chain("", "a", now_s=8)
    kept.forget_old(now_s=15)
    assert len(kept) == 2
    kept.forget_old(now_s=16)
    assert len(kept) == 1
    assert kept.get(("", "a"), now_s=18) is not None
    assert kept.get(("", "a"), now_s=19) is None
    assert kept.num_bytes == 0


def test_a_chain_is_read_from_its_beginning() -> None:
    """Every response that it continues, in order; continuing it makes all of them younger."""
    kept = store(3.5)
    kept.put(("", "a"), stored(1), now_s=0)
    kept.put(("", "b"), stored(2, "a"), now_s=0)
    kept.put(("", "x"), stored(), now_s=0)
    assert [len(entry.body) for entry in kept.chain("", "b", now_s=1)] == [1, 2]
    kept.put(("", "c"), stored(3, "b"), now_s=2)
    assert kept.get(("", "x"), now_s=2) is None


def test_a_chain_with_a_gap_says_what_is_missing() -> None:
    """The one asked for, or the one that it continues."""
    kept = store()
    kept.put(("", "a"), stored(), now_s=0)
    kept.put(("", "b"), stored(previous="a"), now_s=0)
    kept.delete(("", "a"))
    with pytest.raises(NotFound, match=r"'a' \('b' continues it\): it was never stored, or has been deleted"):
        kept.chain("", "b", now_s=0)
    with pytest.raises(NotFound, match="no response 'z': ") as missing:
        kept.chain("", "z", now_s=0)
    assert missing.value.param == "previous_response_id"


def test_a_chain_has_a_length() -> None:
    """What is put together for one request is bounded; the answer says what to do instead."""
    kept = store(MAX_TURNS + 2)
    for turn in range(MAX_TURNS + 1):
        kept.put(("", f"r{turn}"), stored(previous=f"r{turn - 1}" if turn else None), now_s=0)
    assert len(kept.chain("", f"r{MAX_TURNS - 1}", now_s=0)) == MAX_TURNS
    with pytest.raises(InvalidRequest, match=f"'r{MAX_TURNS}' ends a conversation of {MAX_TURNS} stored turns") as long:
        kept.chain("", f"r{MAX_TURNS}", now_s=0)
    assert long.value.param == "previous_response_id"


def test_callers_are_apart() -> None:
    """The same id is another response for another caller; neither reads, continues or deletes the other's."""
    kept = store()
    kept.put(("one", "a"), stored(1), now_s=0)
    assert kept.get(("two", "a"), now_s=0) is None
    assert not kept.delete(("two", "a"))
    with pytest.raises(NotFound):
        kept.chain("two", "a", now_s=0)
    kept.put(("two", "b"), stored(previous="a"), now_s=0)
    with pytest.raises(NotFound):
        kept.chain("two", "b", now_s=0)
    assert kept.get(("one", "a"), now_s=0) is not None


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    """And takes no place from others."""
    kept = store(2)
    kept.put(("", "a"), stored(), now_s=0)
    assert not kept.put(("", "b"), stored(5000), now_s=0)
    assert kept.get(("", "a"), now_s=0) is not None
    assert not store(0).put(("", "a"), stored(), now_s=0)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3000), st.sampled_from(["put", "delete", "chain"])))
)
def test_the_bound_holds_whatever_is_done(steps: list[tuple[str, int, str]]) -> None:
    """The bytes are those of the entries that are there, and never more than may be kept."""
    kept = store(4)
    for now_s, (name, size, what) in enumerate(steps):
        if what == "put":
            kept.put(("", name), stored(size), now_s=now_s)
        elif what == "delete":
            kept.delete(("", name))
        elif kept.get(("", name), now_s=now_s) is not None:
            kept.chain("", name, now_s=now_s)
        found = [entry for each in "abcdef" if (entry := kept.get(("", each), now_s=now_s)) is not None]
        assert len(kept) == len(found)
        assert kept.num_bytes == sum(entry.num_bytes for entry in found) <= 4 * OVERHEAD_BYTES
