"""Tools in words, for templates that know none."""

from triolet.engine.parsing import TOOL_FORMATS
from triolet.engine.parsing.describe import described

HERMES = TOOL_FORMATS["hermes"]
TOOL = {"type": "function", "function": {"name": "f", "description": "So.", "parameters": {}}}
CALL = {"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}


def test_the_systems_message_tells_of_the_tools() -> None:
    """Behind what it says; there is one where there was none."""
    (system, user) = described([{"role": "user", "content": "Hi"}], [TOOL], HERMES)
    assert (system["role"], user) == ("system", {"role": "user", "content": "Hi"})
    assert '{"name": "f", "description": "So.", "parameters": {}}' in system["content"]
    assert HERMES.written("NAME", {"PARAMETER": "VALUE"}) in system["content"]
    (told,) = described([{"role": "developer", "content": "Be brief."}], [TOOL], HERMES)
    assert told == {"role": "developer", "content": f"Be brief.\n\n{system['content']}"}
    (told,) = described([{"role": "system", "content": ""}], [TOOL], HERMES)
    assert told["content"] == system["content"]


def test_calls_and_results_become_text() -> None:
    """Also where this request has no tools: the conversation had them."""
    messages = [
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    first, second = described(messages, [], HERMES)
    written = HERMES.written("f", {"a": 1})
    assert first == {"role": "assistant", "content": f"I look.\n{written}\n{written}"}
    assert second == {"role": "user", "content": "<tool_response>\n2\n</tool_response>"}
