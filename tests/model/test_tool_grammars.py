"""Calls that are asked for: whatever the tokens, they are calls, of the parser's own format, and validate."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.model.answering import follows, run
from tests.model.running import our_model, reference_model
from triolet.api.tools import Tool, ToolFunction, tool_use
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import MARKS, GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.parsing import REASONING_FORMATS, TOOL_FORMATS, AnswerParser, Function, collect, formats_of
from triolet.engine.parsing.calls import MOST_FORCED
from triolet.model.grammar import Grammars, grammars_of
from triolet.model.llama import LlamaModel
from triolet.model.source import ModelSource
from triolet.model.tokenizer import ChatTokenizer

FORMATS = {**TOOL_FORMATS, "mistral, named": formats_of("[TOOL_CALLS][ARGS]").tools}


@pytest.fixture(scope="module")
def grammars(builtin_source: ModelSource) -> Grammars:
    return grammars_of(builtin_source)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    """Random weights behind the built-in model's vocabulary."""
    shape = {"vocab_size": 49152, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return our_model(reference_model("llama", max_position_embeddings=2048, **shape))


values = st.sampled_from(
    [
        {"type": "string", "maxLength": 6},
        {"type": "string", "minLength": 1, "maxLength": 3},
        {"type": "string", "pattern": "^[a-c]{1,3}$"},
        {"enum": ["red", "a b", "é"]},
        {"type": "integer", "minimum": -5, "maximum": 40},
        {"type": "boolean"},
        {"type": ["boolean", "null"]},
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"], "additionalProperties": False},
        {"$ref": "#/$defs/size"},
    ]
)
parameters = st.dictionaries(st.sampled_from(["a", "b", "c_d"]), values, max_size=3).flatmap(
    lambda properties: st.sets(st.sampled_from(sorted(properties)) if properties else st.nothing()).map(
        lambda required: {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            "additionalProperties": False,
            "$defs": {"size": {"enum": ["S", "M"]}},
        }
    )
)


def parsed(format: Any, functions: list[Function], text: str) -> Any:
    parser = AnswerParser(tools=format.parser(functions))
    return collect([*parser.push(text), *parser.finish()])


def spec_of(format: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec.structural_tag({"type": "structural_tag", "format": format}, param="tools")


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=6, deadline=None)
@given(schemas=st.lists(parameters, min_size=1, max_size=2), seed=st.integers(0, 2**31))
def test_calls_that_are_asked_for_validate(
    model: LlamaModel,
    grammars: Grammars,
    builtin_tokenizer: ChatTokenizer,
    name: str,
    schemas: list[Any],
    seed: int,
) -> None:
    """A random model's answers, held to one call: each is one call and nothing beside it, with arguments that parse and
    keep to the function's schema."""
    format = FORMATS[name]
    functions = [Function(name=f"f{index}", parameters=schema) for index, schema in enumerate(schemas)]
    spec = spec_of(format.forced(functions, several=False))
    answers, _ = run(model, grammars, {"a": SamplingParams(grammar=spec, max_tokens=300, n=4)}, seed=seed)
    for tokens, reason in answers["a"]:
        text = builtin_tokenizer.decode(tokens)
        note(text)
        assert reason is FinishReason.STOP
        found = parsed(format, functions, text)
        assert found.content == ""
        (call,) = found.calls
        jsonschema.validate(json.loads(call.arguments), schemas[int(call.name[1:])])


@pytest.mark.parametrize("name", FORMATS)
def test_a_function_without_parameters_is_called_without(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, name: str
) -> None:
    """And where several calls may come, there is at least one."""
    functions = [Function(name="now"), Function(name="get_time")]
    spec = spec_of(FORMATS[name].forced(functions, several=True))
    answers, _ = run(model, grammars, {"a": SamplingParams(grammar=spec, max_tokens=400, n=3)})
    for tokens, _ in answers["a"]:
        found = parsed(FORMATS[name], functions, builtin_tokenizer.decode(tokens))
        assert found.calls
        assert json.loads(found.calls[0].arguments) == {}


@pytest.mark.parametrize("num_calls", [1, 2, MOST_FORCED, MOST_FORCED + 1])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_are_asked_for_come_to_an_end(
    grammars: Grammars, builtin_tokenizer: ChatTokenizer, name: str, num_calls: int
) -> None:
    """One more than the most would be the way of a model that does not know how to stop."""
    functions = [Function(name="now"), Function(name="get_time")]
    spec = spec_of(FORMATS[name].forced(functions, several=True))
    said = [FORMATS[name].written(functions[number % 2].name, {}) for number in range(num_calls)]
    front, separator, behind = {
        "pythonic": ("[", ", ", "]"),
        "mistral": ("[TOOL_CALLS][", ", ", "]"),
        "mistral, named": ("", "", ""),
        "llama3_json": ("", "; ", ""),
    }.get(name, ("", "\n", ""))
    text = front + separator.join(one.removeprefix(front).removesuffix(behind) for one in said) + behind
    assert len(parsed(FORMATS[name], functions, text).calls) == num_calls
    assert follows(grammars, builtin_tokenizer, spec, text) == (num_calls <= MOST_FORCED)


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral, named", "qwen3_coder"])
def test_what_is_offered_leaves_text_free_and_holds_strict_calls(
    grammars: Grammars, builtin_tokenizer: ChatTokenizer, name: str
) -> None:
    """Text is allowed, and a call that keeps to the schema; a strict one that does not is not."""
    format = FORMATS[name]
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    functions = [Function(name="held", parameters=schema, strict=True), Function(name="loose", parameters=schema)]
    spec = spec_of(format.offered(functions) or {})

    assert follows(grammars, builtin_tokenizer, spec, "Nothing to call: a < b [c].")
    assert follows(grammars, builtin_tokenizer, spec, "So: " + format.written("held", {"a": True}))
    assert not follows(grammars, builtin_tokenizer, spec, format.written("held", {"a": "x"}))
    assert not follows(grammars, builtin_tokenizer, spec, format.written("other", {"a": True}))
    assert follows(grammars, builtin_tokenizer, spec, format.written("loose", {"b": "x"}))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (GrammarSpec.json_object(), '{"a": [1]}'),
        (GrammarSpec.json_schema({"type": "object", "properties": {"a": {"type": "null"}}}), '{"a": null}'),
        (GrammarSpec.regex("[ab]+"), "abba"),
        (GrammarSpec.ebnf('root ::= "x" | "y"'), "y"),
    ],
)
def test_an_answer_is_of_its_form_or_a_call(
    grammars: Grammars, builtin_tokenizer: ChatTokenizer, name: str, content: GrammarSpec, text: str
) -> None:
    """Where both are asked for, either may come and nothing else."""
    tool = Tool(function=ToolFunction(name="now"))
    use = tool_use([tool], "auto", True)
    assert use is not None
    spec = use.constraint(FORMATS[name], content)
    assert spec is not None

    assert follows(grammars, builtin_tokenizer, spec, text)
    assert follows(grammars, builtin_tokenizer, spec, FORMATS[name].written("now", {}))
    assert not follows(grammars, builtin_tokenizer, spec, "Hello")


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_a_schema_that_is_not_parameters_is_refused_where_they_stand_alone(name: str) -> None:
    """These formats write parameters one by one."""
    function = Function(name="f", parameters={"type": "object", "anyOf": [{"required": ["a"]}]})
    with pytest.raises(InvalidRequest, match=f"The parameters of f cannot be enforced in the format {name}: 'anyOf'"):
        TOOL_FORMATS[name].forced([function], several=False)


def test_grammars_can_write_every_mark() -> None:
    """Also where it is a special token."""
    named = {mark for format in TOOL_FORMATS.values() for mark in format.markers}
    named |= {mark for format in REASONING_FORMATS.values() for mark in (format.start, format.end)}
    assert set(MARKS) == named
