"""Tools from Python, without HTTP: the built-in model, whose template knows none, is told of them and makes a call."""

import json

from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.llm import LLM
from triolet.engine.parsing import AnswerParser, Function, collect

MIB = 1024 * 1024
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]


def test_a_conversation_with_tools_from_python() -> None:
    """The prompt shows them; the answer is a call, and the conversation goes on behind it."""
    functions = [Function(name="get_weather", parameters=PARAMETERS)]
    with LLM(kv_cache_memory=64 * MIB, max_model_len=1024, progress=False) as llm:
        formats = llm.formats
        assert (formats.tools.name, formats.reasoning, formats.knows_tools) == ("hermes", None, False)
        grammar = GrammarSpec.structural_tag(
            {"type": "structural_tag", "format": formats.tools.forced(functions, several=False)}
        )
        params = SamplingParams(grammar=grammar, temperature=0, max_tokens=80)
        (output,) = llm.chat(QUESTION, params, tools=[TOOL], progress=False)
        (bare,) = llm.chat(QUESTION, SamplingParams(max_tokens=1), progress=False)
        assert len(output.prompt_token_ids) > len(bare.prompt_token_ids) + 50
        parser = AnswerParser(tools=formats.tools.parser(functions))
        (call,) = collect([*parser.push(output.text), *parser.finish()]).calls
        arguments = json.loads(call.arguments)
        assert arguments["city"] in ("Paris", "Rome")
        turns = [
            *QUESTION,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": call.id, "function": {"name": call.name, "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
        ]
        (answer,) = llm.chat(turns, SamplingParams(temperature=0, max_tokens=8), tools=[TOOL], progress=False)
        assert answer.text
        assert len(answer.prompt_token_ids) > len(output.prompt_token_ids)
