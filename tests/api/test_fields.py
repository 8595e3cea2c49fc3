"""The other fields of a request: what reaches the engine, and what the answer then holds."""

import json
from typing import Any

import pytest

from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.repetition import RepetitionDetection
from triolet.engine.prompt import ChatPrompt, Cut, InfillPrompt, TextPrompt, TokenPrompt

from .fake_engine import FakeEngine
from .rig import chat, events_of, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = [(CHAT, chat()), (COMPLETIONS, {"prompt": "ab"})]
REPORTING = [(CHAT, chat(logprobs=True)), (COMPLETIONS, {"prompt": "ab", "logprobs": 0})]

SAMPLING: dict[str, tuple[Any, Any]] = {
    "presence_penalty": (0.5, 0.5),
    "frequency_penalty": (-0.5, -0.5),
    "repetition_penalty": (1.5, 1.5),
    "logit_bias": ({"7": 1000, "5": -0.5}, ((5, -0.5), (7, 100.0))),
    "allowed_token_ids": ([3, 4], (3, 4)),
    "bad_words": (["x", "y z"], ("x", "y z")),
    "prompt_logprobs": (3, 3),
    "logprob_token_ids": ([3, 4], (3, 4)),
    "include_stop_str_in_output": (True, True),
    "skip_special_tokens": (False, False),
    "spaces_between_special_tokens": (False, False),
    "repetition_detection": (
        {"max_pattern_size": 9, "min_pattern_size": 0, "min_count": 3},
        RepetitionDetection(max_pattern_size=9, min_pattern_size=1, min_count=3),
    ),
}


@pytest.mark.parametrize(("path", "body"), REPORTING)
async def test_the_sampling_fields_reach_the_engine(path: str, body: dict[str, Any]) -> None:
    """Each by its name, on both routes; null is the default, and -1 is no seed."""
    async with serving() as rig:
        await rig.post(path, {**body, **{name: given for name, (given, _) in SAMPLING.items()}})
        await rig.post(path, {**body, **dict.fromkeys(SAMPLING), "seed": -1})
        await rig.post(path, body)
        given, nulls, default = (seen.params for seen in rig.engine.seen)
    assert {name: getattr(given, name) for name in SAMPLING} == {name: kept for name, (_, kept) in SAMPLING.items()}
    assert nulls == default


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_fields_of_openais_platform_are_accepted(path: str, body: dict[str, Any]) -> None:
    """user, store, metadata and service_tier mean nothing here, and do no harm."""
    fields = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "best_of": 1}
    async with serving() as rig:
        assert (await rig.post(path, {**body, **fields})).status_code == 200


async def test_an_answer_is_named_by_its_request() -> None:
    """The id is the request's own, the header's before the body's, with the route's prefix."""
    async with serving() as rig:
        answer = (await rig.post(CHAT, chat(request_id="mine"))).json()
        assert answer["id"] == "chatcmpl-mine"
        response = await rig.post(COMPLETIONS, {"prompt": "a", "request_id": "x"}, headers={"x-request-id": "theirs"})
        assert response.json()["id"] == "cmpl-theirs"
        assert response.headers["x-request-id"] == "theirs"


async def test_token_ids_come_beside_the_text() -> None:
    """return_token_ids: the prompt's and the answer's; streamed, the prompt's once and the answer's with their text."""
    body = {"prompt": "ab", "return_token_ids": True}
    async with serving(FakeEngine(pieces=["x", "y"])) as rig:
        choice = (await rig.post(COMPLETIONS, body)).json()["choices"][0]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (list(b"^ab"), list(b"xy"))
        events = events_of((await rig.post(COMPLETIONS, {**body, "stream": True})).text)
        choices = [event["choices"][0] for event in events]
        assert [choice.get("prompt_token_ids") for choice in choices] == [list(b"^ab"), None]
        assert [choice["token_ids"] for choice in choices] == [[ord("x")], [ord("y")]]
        answer = (await rig.post(CHAT, chat(return_token_ids=True))).json()
        assert answer["prompt_token_ids"] == list(b"<user>Hi<assistant>")
        assert answer["choices"][0]["token_ids"] == list(b"xy")
        events = events_of((await rig.post(CHAT, chat(return_token_ids=True, stream=True))).text)
        assert events[0]["prompt_token_ids"] == list(b"<user>Hi<assistant>")
        assert [event["choices"][0].get("token_ids") for event in events] == [None, [120], [121], None]


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_usage_may_come_with_every_chunk(path: str, body: dict[str, Any]) -> None:
    """continuous_usage_stats: the tokens of the chunk's choice so far; the sum comes last, as without."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(FakeEngine(pieces=["x", "y"])) as rig:
        events = events_of((await rig.post(path, {**body, "n": 2, "stream": True, "stream_options": options})).text)
        options["include_usage"] = False
        without = events_of((await rig.post(path, {**body, "stream": True, "stream_options": options})).text)
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
    assert counts[-1] == 2
    assert counts == sorted(counts)
    assert events[-1]["choices"] == []
    assert not any("usage" in event for event in without)


async def test_an_echoed_text_stands_in_front() -> None:
    """As it was sent; tokens as they are spelled; each choice has its prompt's."""
    async with serving(FakeEngine(pieces=["x"])) as rig:
        answer = (await rig.post(COMPLETIONS, {"prompt": ["ab", "c"], "echo": True, "n": 2})).json()
        assert [choice["text"] for choice in answer["choices"]] == ["abx", "ab", "cx", "c"]
        answer = (await rig.post(COMPLETIONS, {"prompt": [104, 105], "echo": True})).json()
        assert answer["choices"][0]["text"] == "hix"
        events = events_of((await rig.post(COMPLETIONS, {"prompt": "ab", "echo": True, "stream": True})).text)
        assert [event["choices"][0]["text"] for event in events] == ["ab", "x"]


async def test_a_chat_that_continues_may_echo_what_it_continues() -> None:
    """With echo the assistant's last message stands in front of the answer, plain and streamed; a user's does not."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "One, "}]
    body = {"messages": talk, "echo": True, "add_generation_prompt": False, "continue_final_message": True}
    async with serving(FakeEngine(pieces=["two"])) as rig:
        answer = (await rig.post(CHAT, body)).json()
        assert answer["choices"][0]["message"]["content"] == "One, two"
        for more in ({}, {"logprobs": True}):
            events = events_of((await rig.post(CHAT, {**body, **more, "stream": True})).text)
            assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "One, two"
        answer = (await rig.post(CHAT, chat(echo=True))).json()
        assert answer["choices"][0]["message"]["content"] == "two"
        prompt = rig.engine.seen[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


async def test_what_a_conversation_becomes_is_up_to_the_request() -> None:
    """documents, add_special_tokens, the generation prompt and where it is cut."""
    async with serving() as rig:
        fields = {"documents": [{"text": "d"}], "add_special_tokens": True, "add_generation_prompt": False}
        await rig.post(CHAT, chat(**fields, truncate_prompt_tokens=5, truncation_side="right"))
        await rig.post(CHAT, chat())
        given, default = (seen.prompt for seen in rig.engine.seen)
    assert isinstance(given, ChatPrompt)
    assert isinstance(default, ChatPrompt)
    assert given.documents == ({"text": "d"},)
    assert (given.add_special_tokens, given.add_generation_prompt) == (True, False)
    assert given.cut == Cut(num_tokens=5, side="right")
    assert (default.add_special_tokens, default.add_generation_prompt, default.documents) == (False, True, None)
    assert default.cut is None


async def test_a_prompt_is_cut_and_filled_in_as_asked() -> None:
    """-1 leaves room for the answer; a text that is echoed is what is left of it; a suffix makes a gap."""
    async with serving(FakeEngine(pieces=["x"], max_model_len=10)) as rig:
        body = {"prompt": "abcdefghijkl", "max_tokens": 4, "echo": True, "truncate_prompt_tokens": -1}
        answer = (await rig.post(COMPLETIONS, body)).json()
        assert (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]) == ("ghijklx", 6)
        await rig.post(COMPLETIONS, {"prompt": [5, 6, 7], "truncate_prompt_tokens": 2, "add_special_tokens": False})
        await rig.post(COMPLETIONS, {"prompt": "a", "add_special_tokens": False})
        await rig.post(COMPLETIONS, {"prompt": "a", "suffix": "b"})
        assert [seen.prompt for seen in rig.engine.seen[1:]] == [
            TokenPrompt(token_ids=(5, 6, 7), cut=Cut(num_tokens=2)),
            TextPrompt(text="a", add_special_tokens=False),
            InfillPrompt(text="a", suffix="b"),
        ]


async def test_messages_of_tools_and_developers_reach_the_template() -> None:
    """Tool calls with their arguments as objects, a tool's answer with its id, reasoning by one name."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    async with serving() as rig:
        rig.engine.tokenizer.template = "{{ tools }}"
        assert (await rig.post(CHAT, {"messages": messages})).status_code == 200
        prompt = rig.engine.seen[0].prompt
    assert isinstance(prompt, ChatPrompt)
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert list(prompt.messages) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [called]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "No."},
    ]


async def test_an_answer_that_repeats_itself_says_so() -> None:
    """The finish reason is vLLM's; with --strict-finish-reasons one that OpenAI's clients know."""
    engine = FakeEngine()
    engine.finish_reason, engine.stop_reason = FinishReason.REPETITION, "repetition_detected"
    for strict, word in ((False, "repetition"), (True, "length")):
        async with serving(engine, strict_finish_reasons=strict) as rig:
            choice = (await rig.post(CHAT, chat())).json()["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"]) == (word, "repetition_detected")


async def test_a_conversation_is_rendered_without_an_answer() -> None:
    """POST /v1/chat/completions/render: the prompt and its tokens; the engine hears of no request."""
    async with serving() as rig:
        answer = (await rig.post(f"{CHAT}/render", chat(add_generation_prompt=False))).json()
        assert answer == {
            "model": "fake",
            "prompt": "<user>Hi",
            "token_ids": list(b"<user>Hi"),
            "max_model_len": 4096,
        }
        answer = (await rig.post(f"{CHAT}/render", chat(truncate_prompt_tokens=3))).json()
        assert answer["prompt"] == "nt>"
        assert (await rig.post(f"{CHAT}/render", chat(model="other"))).status_code == 404
        assert not rig.engine.seen


async def test_tokens_are_spelled_where_asked() -> None:
    """/tokenize with return_token_strs; a conversation's last message may be left open there too."""
    async with serving() as rig:
        body = (await rig.post("/tokenize", {"prompt": "aé", "return_token_strs": True})).json()
        assert body["token_strs"] == ["^", "a", "é"]
        body = {"messages": chat()["messages"], "continue_final_message": True}
        assert (await rig.post("/tokenize", body)).status_code == 400
        assert (await rig.post("/tokenize", {**body, "add_generation_prompt": False})).status_code == 200


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}
"""As vLLM's clients wrote them before there was `format`."""
CONTENT = {"type": "json_schema", "json_schema": SCHEMA}
TRIGGERED = GrammarSpec.structural_tag(
    {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f>"],
            "tags": [{"type": "tag", "begin": "<f>", "content": CONTENT, "end": "</f>"}],
        },
    }
)
FORMS: list[tuple[dict[str, Any], GrammarSpec | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, GrammarSpec.json_object()),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        GrammarSpec.json_schema(SCHEMA),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}},
        GrammarSpec.json_schema(SCHEMA, strict=False),
    ),
    (
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        GrammarSpec.structural_tag({"type": "structural_tag", "format": {"type": "any_text"}}),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        GrammarSpec.json_schema(SCHEMA, any_whitespace=False),
    ),
    ({"structured_outputs": {"json": "{}"}}, GrammarSpec.json_schema({})),
    ({"structured_outputs": {"json_object": True}}, GrammarSpec.json_object()),
    ({"structured_outputs": {"regex": "a+"}}, GrammarSpec.regex("a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, GrammarSpec.choice(["a", "b"])),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, GrammarSpec.ebnf('root ::= "a"')),
    ({"structured_outputs": {"structural_tag": '{"format": {}}'}}, GrammarSpec.structural_tag({"format": {}})),
    ({"response_format": {"type": "structural_tag", **TAGS}}, TRIGGERED),
    ({"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, TRIGGERED),
]


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize(("fields", "grammar"), FORMS)
async def test_the_form_of_an_answer_reaches_the_engine(
    path: str, body: dict[str, Any], fields: dict[str, Any], grammar: GrammarSpec | None
) -> None:
    """OpenAI's response_format and vLLM's structured_outputs, as one constraint."""
    async with serving() as rig:
        assert (await rig.post(path, {**body, **fields})).status_code == 200
        assert rig.engine.seen[0].params.grammar == grammar
