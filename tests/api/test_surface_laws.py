"""Laws of the two other chat surfaces: whatever an answer holds, however it is cut, its events add up to the whole."""

import json
from itertools import chain
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.answers import Answer, usage_of
from triolet.api.anthropic.message import UNPARSED, MessageFormat
from triolet.api.responses.document import Asked, Response
from triolet.api.responses.items import InputItem, messages_of
from triolet.api.tokens import Spelling
from triolet.engine.core.events import FinishReason
from triolet.engine.parsing import CallArguments, CallStart, Content, Delta, Reasoning, merged
from triolet.engine.stream import Output

from .fake_engine import FakeTokenizer

TEXT = st.text(min_size=1, max_size=8)


@st.composite
def answers(draw: st.DrawFn) -> list[list[Delta]]:
    """The deltas of an answer, output by output: reasoning, then text and calls in any order."""
    deltas: list[Delta] = [Reasoning(text) for text in draw(st.lists(TEXT, max_size=3))]
    num_calls = 0
    for is_call in draw(st.lists(st.booleans(), max_size=5)):
        if is_call:
            deltas.append(CallStart(num_calls, draw(st.sampled_from(["look", "point"])), f"call_{num_calls}"))
            arguments = json.dumps(draw(st.dictionaries(TEXT, st.integers(), max_size=2)))
            cut = draw(st.integers(0, len(arguments)))
            deltas += [CallArguments(num_calls, part) for part in (arguments[:cut], arguments[cut:]) if part]
            num_calls += 1
        else:
            deltas += [Content(text) for text in draw(st.lists(TEXT, max_size=3))]
    outputs: list[list[Delta]] = [[]]
    for delta in deltas:
        if draw(st.booleans()):
            outputs.append([])
        outputs[-1].append(delta)
    return outputs


def feed(format: Any, outputs: list[list[Delta]], reason: FinishReason = FinishReason.STOP) -> tuple[bytes, bytes]:
    """All events of a stream, and the body of the same as a plain answer."""
    answer = Answer()
    events = format.opening()
    for index, deltas in enumerate(outputs):
        last = index == len(outputs) - 1
        answer.last = Output(
            text="",
            token_ids=(index,),
            finish_reason=reason if last else None,
            stop_reason=None,
            num_prompt_tokens=3,
            num_cached_tokens=1,
            num_output_tokens=index + 1,
        )
        answer.deltas = deltas
        events += format.delta(answer, answer.last)
    usage = usage_of([answer])
    events += format.closing(usage, include_usage=True)
    return events, format.whole([answer], usage)


def decoded(events: bytes) -> list[dict[str, Any]]:
    blocks = events.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.split("\n")[1].removeprefix("data: ")) for block in blocks]


def response() -> Response:
    asked = Asked(
        id="resp_1",
        caller="",
        model="m",
        created=1,
        echo={},
        input_items=b"[]",
        previous=None,
        store=False,
        background=False,
        num_top=None,
        strict=False,
    )
    return Response(asked, Spelling(FakeTokenizer()), lambda _: None)  # type: ignore[arg-type]


TEXT_FIELDS = {"output_text": "text", "reasoning_text": "text", "function_call_arguments": "arguments"}


@given(answers(), st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_the_events_of_a_response_add_up_to_it(outputs: list[list[Delta]], reason: FinishReason) -> None:
    """Numbered from 0; items open and close one after the other; deltas give the done texts, and those the items."""
    events, whole = feed(response(), outputs, reason)
    told = decoded(events)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    items: list[dict[str, Any]] = []
    texts: dict[int, str] = {}
    open_index: int | None = None
    for event in told[2:-1]:
        match event["type"].removeprefix("response.").split("."):
            case ["output_item", "added"]:
                assert open_index is None
                open_index = event["output_index"]
                assert open_index == len(items)
            case ["output_item", "done"]:
                assert event["output_index"] == open_index
                items.append(event["item"])
                open_index = None
            case [kind, "delta"]:
                assert event["output_index"] == open_index
                texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
            case [kind, "done"] if kind in TEXT_FIELDS:
                assert event[TEXT_FIELDS[kind]] == texts.get(event["output_index"], "")
    assert open_index is None
    assert told[-1]["response"] == json.loads(whole)
    assert json.loads(whole)["output"] == items
    for index, item in enumerate(items):
        said = item["arguments"] if item["type"] == "function_call" else "".join(p["text"] for p in item["content"])
        assert said == texts.get(index, "")
    kinds = {Content: "message", Reasoning: "reasoning", CallStart: "function_call"}
    given = [kinds[type(delta)] for delta in merged(chain.from_iterable(outputs)) if type(delta) in kinds]
    ended = ["message"] if not given and reason is FinishReason.STOP else []
    assert [item["type"] for item in items] == given + ended


@given(answers())
def test_how_an_answer_was_cut_does_not_show_in_a_response(outputs: list[list[Delta]]) -> None:
    """All in one output, or delta by delta: the same items, but for their ids."""

    def said(given: list[list[Delta]]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(feed(response(), given)[1])["output"]
        return [{name: value for name, value in item.items() if name != "id"} for item in items]

    flat = list(chain.from_iterable(outputs))
    assert said([flat]) == said(outputs) == said([[delta] for delta in flat] + [[]])


@given(answers())
def test_what_a_response_says_can_be_sent_back(outputs: list[list[Delta]]) -> None:
    """Its items are input items: a client may put them in front of the next question."""
    items = json.loads(feed(response(), outputs)[1])["output"]
    messages = messages_of(msgspec.convert(items, type=list[InputItem]), num_before=0)
    assert {message.role for message in messages} == {"assistant"}
    said = "".join(delta.text for delta in chain.from_iterable(outputs) if isinstance(delta, Content))
    assert "".join(str(message.content or "") for message in messages) == said
    names = [call.function.name for message in messages for call in message.tool_calls or ()]
    assert names == [delta.name for delta in chain.from_iterable(outputs) if isinstance(delta, CallStart)]


@given(answers(), st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_the_events_of_a_message_add_up_to_it(outputs: list[list[Delta]], reason: FinishReason) -> None:
    """Blocks open and close one after the other; their deltas give the whole's blocks."""
    events, whole = feed(MessageFormat(id="msg_1", model="m", strict=False), outputs, reason)
    told = decoded(events)
    assert [told[0]["type"], told[1]["type"]] == ["message_start", "ping"]
    message: dict[str, Any] = told[0]["message"]
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    is_open = False
    for event in told[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                is_open = True
                blocks.append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                texts[-1] += next(value for name, value in event["delta"].items() if name != "type")
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
    assert not is_open
    for block, text in zip(blocks, texts, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text or "{}")
            assert UNPARSED not in block["input"]
        else:
            block[block["type"]] = text
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    assert {**message, "content": blocks, **told[-2]["delta"], "usage": told[-2]["usage"]} == json.loads(whole)
