"""Reading a server's answer: HTTP framing and events, however a server writes them and the network cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.bench.client import Exchange
from triolet.api.bench.measure import Outcome, read_outcome
from triolet.api.bench.response import Framing, MalformedResponse, read_response

from .fake_openai import DONE, chat_events, event, streamed, text_events, whole

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def outcome_of(*pieces: bytes) -> Outcome:
    """An answer, each piece a second after the one before; the request began at 0."""
    arrivals = [(float(index), piece) for index, piece in enumerate(pieces, 1)]
    return read_outcome(Exchange(start_s=0.0, end_s=float(len(pieces)), arrivals=arrivals))


@given(st.data(), LINE_ENDS, st.booleans(), st.lists(st.text(), min_size=1, max_size=5))
def test_events_are_the_same_however_the_bytes_are_cut(
    data: st.DataObject, line_end: bytes, chunked: bool, texts: list[str]
) -> None:
    """Cut anywhere, with any line ends, in chunks or not: the same events, each with the time of its last byte."""
    answer = streamed([event({"text": text}, line_end) for text in texts], chunked=chunked)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=8)))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    at_once = read_response([(0.0, answer)])
    arrivals = [(float(index), piece) for index, piece in enumerate(pieces)]
    response = read_response(arrivals)
    assert [found for _, found in response.events] == [found for _, found in at_once.events]
    assert len(response.events) == len(texts)
    assert [time for time, _ in response.events] == sorted(time for time, _ in response.events)
    assert response.complete


@given(st.data(), st.sampled_from(["chunked", "length", "interim"]))
def test_the_end_of_an_answer_is_found_with_its_last_byte(data: st.DataObject, kind: str) -> None:
    """So that a server may leave the connection open; an answer without a length ends only with it."""
    answer = whole(404, b"nothing here") if kind == "length" else streamed(text_events(2))
    if kind == "interim":
        answer = b"HTTP/1.1 100 Continue\r\n\r\n" + answer
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=8)))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    framing = Framing()
    assert [framing.ends_with(piece) for piece in pieces] == [False] * len(cuts) + [True]
    endless = Framing()
    assert not endless.ends_with(streamed(text_events(2), chunked=False))


def test_an_answer_without_events_keeps_its_body() -> None:
    """Plain answers, empty ones too; short ones are not complete."""
    response = read_response([(0.0, whole(503, {"error": {"message": "later"}}))])
    assert (response.status, response.events, response.complete) == (503, (), True)
    assert read_response([(0.0, whole(200, b""))]).body == b""
    assert not read_response([(0.0, whole(200, b"abc")[:-1])]).complete
    assert not read_response([(0.0, streamed(text_events(2))[:-9])]).complete


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the connection was closed without an answer"),
        (b"SSH-2.0-server\r\n", "the answer is not HTTP/1.1: b'SSH-2.0-server\\r\\n'"),
        (b"HTTP/2 200\r\n\r\n", "the answer is not HTTP/1.1: b'HTTP/2 200\\r\\n'"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            "a chunk begins with b'xyz', not with its size",
        ),
    ],
)
def test_what_is_not_http_is_an_error_that_shows_it(answer: bytes, message: str) -> None:
    """The message has the beginning of what came."""
    with pytest.raises(MalformedResponse) as caught:
        read_response([(0.0, answer)])
    assert str(caught.value) == message
    assert outcome_of(answer).error == message


def test_a_completion_is_measured_by_its_events() -> None:
    """The first text, the gaps between texts, the last event; tokens as the server counts them."""
    events = text_events(4, num_prompt_tokens=9)
    head, *pieces = streamed([b""], chunked=False), *events
    outcome = outcome_of(head, *pieces)
    assert outcome.error is None
    assert (outcome.ttft_s, outcome.itl_s, outcome.e2e_s) == (2.0, (1.0, 1.0, 1.0), 5.0)
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens, outcome.counted) == (9, 4, True)
    assert outcome.tpot_s == 1.0
    assert outcome.text == " word" * 4


def test_a_chat_begins_with_its_first_text_and_not_with_the_role() -> None:
    """Reasoning counts as text, too."""
    outcome = outcome_of(streamed([b""], chunked=False), *chat_events(2))
    assert (outcome.ttft_s, outcome.itl_s, outcome.e2e_s, outcome.num_output_tokens) == (3.0, (1.0,), 5.0, 2)
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "stop"}]})
    assert outcome_of(streamed([thought], chunked=False)).text == "hm"


def test_tokens_are_counted_by_events_where_there_is_no_usage() -> None:
    """And the outcome says so; comments and a null usage don't disturb it."""
    events = text_events(3, usage=False)
    outcome = outcome_of(streamed([b": ping\n\n", *events[:1], event({"choices": [], "usage": None}), *events[1:]]))
    assert (outcome.error, outcome.num_output_tokens, outcome.counted, outcome.num_prompt_tokens) == (None, 3, False, 0)


def test_several_tokens_in_one_event_count_as_the_server_says() -> None:
    """A server joins what a slow reader has not taken: TPOT goes by tokens, ITL by events."""
    joined = event({"choices": [{"text": " a b c", "finish_reason": "length"}], "usage": {"completion_tokens": 5}})
    first = event({"choices": [{"text": " x"}]})
    outcome = outcome_of(streamed([b""], chunked=False), first, joined)
    assert (outcome.tpot_s, outcome.itl_s) == (0.25, (1.0,))


FAULTS = [
    (whole(500, {"error": {"message": "out of luck", "code": 500}}), "status 500: out of luck"),
    (whole(422, {"detail": "no such field"}), "status 422: no such field"),
    (whole(404, b"<html>nope"), "status 404: <html>nope"),
    (whole(502, b""), "status 502: (nothing)"),
    (whole(200, {"choices": [{"text": "all at once"}]}), "the answer has no events: the server doesn't stream"),
    (
        streamed([event({"choices": [{"text": "a"}]})]),
        "the stream was cut: it has neither a finish reason nor [DONE]",
    ),
    (streamed([event({"error": {"message": "it broke"}}), DONE]), "an error within the stream: it broke"),
    (streamed([event(b"{not json")]), "an event is not JSON of the protocol: {not json"),
    (streamed([event({"choices": 3})]), 'an event is not JSON of the protocol: {"choices": 3}'),
]


@pytest.mark.parametrize(("answer", "error"), FAULTS)
def test_anything_short_of_a_whole_answer_is_an_error(answer: bytes, error: str) -> None:
    """With the server's own words where it has some."""
    assert outcome_of(answer).error == error


def test_a_finish_reason_is_an_end_too() -> None:
    """[DONE] may be missing; and after it nothing is read."""
    assert outcome_of(streamed(text_events(2)[:-1])).error is None
    assert outcome_of(streamed([*text_events(2), event(b"rubbish")])).error is None
