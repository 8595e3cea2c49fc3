"""Tool calls of each format, out of transcripts as models write them."""

import json

import pytest

from triolet.engine.parsing import TOOL_FORMATS

from .texts import calls_of, parse

PARIS = '{"city": "Paris"}'
ROME = '{"city": "Rome", "days": 3}'

CALLS = [
    ("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>', "", [PARIS]),
    ("hermes", f'<tool_call>{{"arguments": {ROME}, "name": "get_weather"}}</tool_call>', "", [ROME]),
    (
        "hermes",
        f'I look.\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>\n',
        "I look.",
        [PARIS, ROME],
    ),
    ("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call> Wait.', "Wait.", [PARIS]),
    ("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}', "", [PARIS]),
    ("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}\n</tool_call>', "", [PARIS]),
    ("llama3_json", f'{{"name": "get_weather", "parameters": {PARIS}}}', "", [PARIS]),
    ("llama3_json", f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {ROME}}}', "", [ROME]),
    (
        "llama3_json",
        f'{{"name": "get_weather", "parameters": {PARIS}}}; {{"name": "get_weather", "arguments": {ROME}}}',
        "",
        [PARIS, ROME],
    ),
    ("llama3_json", f'So:<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}', "So:", [PARIS]),
    ("mistral", f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {PARIS}}}]', "", [PARIS]),
    (
        "mistral",
        f'Yes. [TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, '
        f'{{"name": "get_weather", "arguments": {ROME}, "id": "abc123XYZ"}}]',
        "Yes.",
        [PARIS, ROME],
    ),
    ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_weather{ROME}", "", [PARIS, ROME]),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{PARIS}", "", [PARIS]),
    ("mistral", f'[TOOL_CALLS]{{"name": "get_weather", "arguments": {PARIS}}}', "", [PARIS]),
    (
        "qwen3_coder",
        "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        "Let me see.",
        [ROME],
    ),
    ("qwen3_coder", "<function=get_weather><parameter=city>Paris</parameter></function>", "", [PARIS]),
    ("pythonic", '[get_weather(city="Paris")]', "", [PARIS]),
    ("pythonic", "[get_weather(city='Paris'), get_weather(city='Rome', days=3)]", "", [PARIS, ROME]),
]


@pytest.mark.parametrize(("format", "text", "content", "arguments"), CALLS)
def test_calls_are_found(format: str, text: str, content: str, arguments: list[str]) -> None:
    """Each call with its arguments, and what stands beside the calls as content."""
    parsed = parse(format, text)
    assert calls_of(parsed) == [("get_weather", each) for each in arguments]
    assert parsed.content == content


NO_CALLS = [
    ("hermes", "<tool_call>"),
    ("hermes", "a < b, and <tool_cal is no marker"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": "Paris"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_weather", "name": "now", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}}</tool_call>'),
    ("hermes", "<tool_call>get_weather</tool_call>"),
    ("hermes", "Nothing was called.</tool_call>"),
    ("hermes", '<tool_call>{"name": "get_weather", "argu'),
    ("llama3_json", '{"city": "Paris"}'),
    ("llama3_json", '{"name": "get_weather"}'),
    ("llama3_json", 'Call {"name": "get_weather", "parameters": {}} yourself'),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("mistral", "[TOOL_CALLS][]"),
    ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]get_weather[OTHER]{}"),
    ("mistral", "[TOOL_CALLS]"),
    ("qwen3_coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call><parameter=city>"),
    ("qwen3_coder", "<function=get_weather"),
    ("pythonic", "[1, 2, 3]"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "As a list: [get_weather(city='Paris')]"),
    ("pythonic", "[get_weather"),
]


@pytest.mark.parametrize(("format", "text"), NO_CALLS)
def test_what_is_no_call_stays_content(format: str, text: str) -> None:
    """Every character of it is there, the markers too."""
    parsed = parse(format, text)
    assert (parsed.content, parsed.calls) == (text, ())


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_what_a_format_writes_it_reads(format: str) -> None:
    """The text of a call, as a conversation's history shows it to a model, is a call."""
    arguments = {"city": 'a "quoted" \\ name\n of lines', "days": -3, "metric": None, "places": [{"a": 1.5}, {}]}
    parsed = parse(format, TOOL_FORMATS[format].written("get_weather", arguments))
    assert [json.loads(call.arguments) for call in parsed.calls] == [arguments]
    assert parsed.content == ""
    assert calls_of(parse(format, TOOL_FORMATS[format].written("now", {}))) == [("now", "{}")]


CUT_OFF = [
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Pa', '{"city": "Pa'),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Pa', '{"city": "Pa'),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Pa', '{"city": "Pa'),
    ("qwen3_coder", "<tool_call><function=get_weather><parameter=city>Pa", '{"city": "Pa'),
    ("pythonic", "[get_weather(city='Pa", '{"city": "Pa'),
]


@pytest.mark.parametrize(("format", "text", "arguments"), CUT_OFF)
def test_a_call_that_is_cut_off_is_a_call(format: str, text: str, arguments: str) -> None:
    """Its arguments go as far as the answer came."""
    assert calls_of(parse(format, text)) == [("get_weather", arguments)]


BROKEN = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": }}</tool_call> Hm.', '{"a": }}', "Hm."),
    ("llama3_json", '{"name": "now", "parameters": {"a": }}', '{"a": }}', ""),
    ("mistral", '[TOOL_CALLS]now[ARGS]{"a": }', '{"a": }', ""),
    ("pythonic", "[now(a=open('x'))]", "{\"a\": open('x'))]", ""),
]


@pytest.mark.parametrize(("format", "text", "arguments", "content"), BROKEN)
def test_arguments_that_are_no_json_are_given_as_written(format: str, text: str, arguments: str, content: str) -> None:
    """Once a call to a known function has begun its arguments it is one, whatever follows."""
    parsed = parse(format, text)
    assert calls_of(parsed) == [("now", arguments)]
    assert parsed.content == content


def test_values_are_typed_by_the_schema() -> None:
    """Qwen3-Coder writes bare text: a string stays one, other types are read as JSON, and as Python's names."""
    values = {"city": "42", "days": "7", "metric": "True", "places": '[{"a": 1}]'}
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    (call,) = parse("qwen3_coder", f"<tool_call>\n<function=get_weather>\n{text}</function>\n</tool_call>").calls
    assert json.loads(call.arguments) == {"city": "42", "days": 7, "metric": True, "places": [{"a": 1}]}


def test_a_value_that_is_no_json_of_its_type_is_a_string() -> None:
    """The arguments are JSON whatever the model writes between the marks."""
    text = "<function=get_weather><parameter=days>soon\n\n</parameter><parameter=city>\n\nx\n\n</parameter></function>"
    (call,) = parse("qwen3_coder", text).calls
    assert json.loads(call.arguments) == {"days": "soon\n", "city": "\nx\n"}


def test_python_literals_become_json() -> None:
    """Strings of both quotes with their escapes, tuples, nested values, trailing commas."""
    text = r"""[now(a='it\'s "so"\n', b=(1, -2.5e3,), c={'k': [True, None, false]}, d="\x41\u00e9\q", e='')]"""
    (call,) = parse("pythonic", text).calls
    assert json.loads(call.arguments) == {
        "a": 'it\'s "so"\n',
        "b": [1, -2500.0],
        "c": {"k": [True, None, False]},
        "d": "Aé\\q",
        "e": "",
    }


def test_calls_past_the_limit_are_dropped() -> None:
    """parallel_tool_calls: false leaves the first one."""
    one = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parsed = parse("hermes", f"So: {one}\n{one}\n{one}", most_calls=1)
    assert calls_of(parsed) == [("now", "{}")]
    assert parsed.content == "So:"


def test_ids_are_those_that_the_models_templates_take() -> None:
    """Unlike one another; Mistral's have nine letters and digits."""
    one = '{"name": "now", "arguments": {}}'
    first, second = parse("mistral", f"[TOOL_CALLS][{one}, {one}]").calls
    assert len(first.id) == 9
    assert first.id.isalnum()
    assert first.id != second.id
    (call,) = parse("llama3_json", one).calls
    assert call.id.startswith("chatcmpl-tool-")
