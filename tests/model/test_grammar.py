"""Constrained answers of a random model: each is what its constraint describes, and nobody else notices."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.model.answering import run
from tests.model.running import our_model, reference_model
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.model.grammar import Grammars, Vocabulary, grammars_of
from triolet.model.llama import LlamaModel
from triolet.model.source import ModelSource
from triolet.model.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def grammars(builtin_source: ModelSource) -> Grammars:
    return grammars_of(builtin_source)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    """Random weights behind the built-in model's vocabulary."""
    return random_model()


def random_model(**options: Any) -> LlamaModel:
    shape = {"vocab_size": 49152, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return our_model(reference_model("llama", max_position_embeddings=1024, **shape), **options)


# Characters whose bytes the built-in vocabulary has.
texts = st.text(st.characters(codec="utf-8", max_codepoint=0x24F), max_size=5)
scalars = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "number"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b}, st.integers(-99, 99), st.integers(0, 99)
    ),
    st.builds(
        lambda n, m: {"type": "string", "minLength": n, "maxLength": n + m}, st.integers(0, 4), st.integers(0, 6)
    ),
    st.sampled_from(["^[a-c]{1,4}$", "^\\d{2,3}-x$"]).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.lists(
        st.one_of(texts, st.integers(-9, 9), st.none(), st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=repr,
    ).map(lambda values: {"enum": values}),
    st.one_of(texts, st.integers()).map(lambda value: {"const": value}),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.text('abcé"\\ 0', min_size=1, max_size=4)

    def an_object(properties: dict[str, Any], skip: int) -> dict[str, Any]:
        required = [name for number, name in enumerate(properties) if number % 3 != skip]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.one_of(
        st.builds(an_object, st.dictionaries(names, inner, min_size=1, max_size=4), st.integers(0, 3)),
        st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n}, inner, st.integers(1, 3)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda choices: {"anyOf": choices}),
    )


schemas = st.recursive(scalars, containers, max_leaves=6)
patterns = st.recursive(
    st.sampled_from(["a", "[a-f]", "[^x\\n]", "\\d", "é", "foo", " ", "\\."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["?", "{1,3}", "{0,2}", "{2}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)
light = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], print_blob=True
)


@settings(light, max_examples=200)
@given(schema=schemas, any_whitespace=st.just(False), seed=st.integers(0, 2**31))
def test_an_answer_keeps_to_its_schema(
    model: LlamaModel,
    grammars: Grammars,
    builtin_tokenizer: ChatTokenizer,
    schema: Any,
    any_whitespace: bool,
    seed: int,
) -> None:
    """Two answers to each of 200 random schemas, drawn with penalties and filters: each is JSON that validates."""
    spec = GrammarSpec.json_schema(schema, any_whitespace=any_whitespace)
    params = SamplingParams(grammar=spec, max_tokens=600, n=2, temperature=1.2, top_p=0.98, presence_penalty=0.3)
    note(json.dumps(schema))
    answers, _ = run(model, grammars, {"a": params}, seed=seed)
    for tokens, reason in answers["a"]:
        assert reason is FinishReason.STOP
        jsonschema.validate(json.loads(builtin_tokenizer.decode(tokens)), schema)


@settings(light, max_examples=200)
@given(pattern=patterns, seed=st.integers(0, 2**31))
def test_an_answer_matches_its_pattern(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, pattern: str, seed: int
) -> None:
    """The whole of it, for 200 random patterns."""
    params = SamplingParams(grammar=GrammarSpec.regex(pattern), max_tokens=200, n=3)
    answers, _ = run(model, grammars, {"a": params}, seed=seed)
    for tokens, reason in answers["a"]:
        assert reason is FinishReason.STOP
        assert re.fullmatch(pattern, builtin_tokenizer.decode(tokens)), pattern


ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "tags": {"type": "array", "maxItems": 4}},
    "required": ["name", "tags"],
}
ITEM["properties"]["tags"]["items"] = {"enum": ["red", "green", "blue"]}  # type: ignore[index]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("num_blocks", "budget"), [(512, 256), (512, 8), (12, 64)])
def test_forks_chunks_preemptions_and_prefix_hits_change_no_answer(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, num_blocks: int, budget: int, depth: int
) -> None:
    """Each answer is the one it gives alone, also those of neighbours that have no grammar."""
    spec = GrammarSpec.json_schema(ITEM, any_whitespace=False)
    requests = {
        "one": SamplingParams(grammar=spec, max_tokens=80),
        "two": SamplingParams(grammar=spec, max_tokens=80, n=2, logprobs=2),
        "choice": SamplingParams(grammar=GrammarSpec.choice(['say "yes"\n', "no"]), max_tokens=60, temperature=0),
        "free": SamplingParams(max_tokens=80, ignore_eos=True),
    }
    answers, scheduler = run(model, grammars, requests, num_blocks=num_blocks, budget=budget, depth=depth)
    assert bool(scheduler.stats.num_preemptions) == (num_blocks == 12)
    for name, params in requests.items():
        alone, _ = run(model, grammars, {name: params})
        assert alone[name] == answers[name]
    for tokens, reason in answers["one"] + answers["two"]:
        assert reason is FinishReason.STOP
        jsonschema.validate(json.loads(builtin_tokenizer.decode(tokens)), ITEM)
    assert builtin_tokenizer.decode(answers["choice"][0][0]) in ('say "yes"\n', "no")


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        (GrammarSpec.ebnf('root ::= "a" [0-9] "z"'), lambda text: re.fullmatch(r"a\dz", text)),
        (GrammarSpec.choice(["é\\n", "\t"]), lambda text: text in ("é\\n", "\t")),
        (
            GrammarSpec.structural_tag(
                {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "boolean"}}}
            ),
            lambda text: isinstance(json.loads(text), bool),
        ),
    ],
)
def test_every_kind_of_constraint(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, spec: GrammarSpec, check: Any
) -> None:
    """`ignore_eos` and `min_tokens` give way to a grammar's end."""
    params = SamplingParams(grammar=spec, max_tokens=40, min_tokens=30, ignore_eos=True, n=3)
    answers, _ = run(model, grammars, {"a": params})
    for tokens, reason in answers["a"]:
        assert reason is FinishReason.STOP
        assert check(builtin_tokenizer.decode(tokens))


def follows(grammars: Grammars, tokenizer: ChatTokenizer, spec: GrammarSpec, text: str) -> bool:
    """Whether the text is a whole answer under the grammar."""
    matcher = grammars.matcher(spec)
    for token in tokenizer.encode(text, add_special_tokens=False):
        allowed = matcher.allowed()
        assert allowed is not None
        if not allowed[token]:
            return False
        matcher.take(token)
    last = matcher.allowed()
    return last is not None and bool(last[2])


@pytest.mark.parametrize("spec", [GrammarSpec.json_object(), GrammarSpec.json_schema(ITEM)], ids=["object", "schema"])
def test_whitespace_between_the_parts_of_a_json_text_ends(
    grammars: Grammars, builtin_tokenizer: ChatTokenizer, spec: GrammarSpec
) -> None:
    """20 characters in a row: a model cannot spend its answer on them. Usual indentation is allowed."""
    item = json.dumps({"name": "a", "tags": ["red"]})
    assert follows(grammars, builtin_tokenizer, spec, json.dumps(json.loads(item), indent=4))
    assert follows(grammars, builtin_tokenizer, spec, item.replace("{", "{" + "\n" * 20))
    assert not follows(grammars, builtin_tokenizer, spec, item.replace("{", "{" + "\n" * 21))


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 129), (5, 300), (128, 300), (129, 129), (300, 1000)],
)
def test_a_string_may_end_from_its_least_length_to_its_most(grammars: Grammars, low: int, high: int) -> None:
    """What the mask allows, the grammar takes: also tokens of a character and the closing quote, around each border."""
    spec = GrammarSpec.json_schema({"type": "string", "minLength": low, "maxLength": high})
    texts = {token: text for token, text in enumerate(grammars.prepare_texts().texts) if text}
    (quote,) = (token for token, text in texts.items() if text == b'"')
    (letter,) = (token for token, text in texts.items() if text == b"x")
    closing = [token for token, text in texts.items() if b'"' in text]
    for length in sorted({0, 1, low - 1, low, high - 1, high} & set(range(high + 1))):
        said = [quote] + [letter] * length
        allowed = grammars.matcher(spec, said).allowed()
        assert allowed is not None
        assert bool(allowed[quote]) == (length >= low)
        assert bool(allowed[letter]) == (length < high)
        for token in closing:
            if allowed[token]:
                after = grammars.matcher(spec, [*said, token]).allowed()
                assert after is not None
                assert after.any()


def test_a_json_object_is_an_object(grammars: Grammars, builtin_tokenizer: ChatTokenizer) -> None:
    """With any keys; a list or a number is none."""

    def is_one(text: str) -> bool:
        return follows(grammars, builtin_tokenizer, GrammarSpec.json_object(), text)

    assert is_one('{"a": [1, {"b": null}]}')
    assert is_one("{}")
    assert not is_one("[1]")
    assert not is_one("1")
    assert not is_one('{"a": 1')


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (GrammarSpec.json_schema({"type": "foo"}), 'response_format cannot be compiled: Unsupported type "foo".'),
        (
            GrammarSpec.json_schema({"$ref": "#/nope"}),
            "response_format cannot be compiled: Cannot find field 'nope' in #/nope.",
        ),
        (
            GrammarSpec.regex("(a"),
            "structured_outputs cannot be compiled: Regex parsing error at position 3: The parenthesis is not closed.",
        ),
        (
            GrammarSpec.ebnf("root ::= foo"),
            'structured_outputs cannot be compiled: EBNF parser error at line 1, column 10: Rule "foo" is not defined.',
        ),
        (
            GrammarSpec.structural_tag({"type": "structural_tag"}),
            "response_format cannot be compiled: Invalid structural tag error: Structural tag must have a format",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(grammars: Grammars, spec: GrammarSpec, said: str) -> None:
    """The field's name and the compiler's words, not the place in its source."""
    with pytest.raises(InvalidRequest) as caught:
        grammars.compile(spec)
    assert caught.value.message.startswith(said)
    assert caught.value.param == spec.param
    assert "/project/" not in caught.value.message


def test_a_grammar_is_compiled_once_and_the_oldest_are_let_go(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number is kept."""
    monkeypatch.setattr("triolet.model.grammar.MAX_KEPT", 2)
    specs = [GrammarSpec.regex("x" * count) for count in range(1, 4)]
    first = grammars.compile(specs[0])
    assert grammars.compile(specs[0]) is first
    for spec in specs:
        grammars.compile(spec)
    assert [grammars.has(spec) for spec in specs] == [False, True, True]


def test_a_token_that_does_not_fit_leaves_no_other(grammars: Grammars) -> None:
    """A matcher that was told an impossible token ends its own request, and raises nothing."""
    matcher = grammars.matcher(GrammarSpec.choice(["yes"]))
    matcher.take(50)
    allowed = matcher.allowed()
    assert allowed is not None
    assert not allowed.any()


def test_preparing_in_advance_leaves_nothing_to_do() -> None:
    """The vocabulary is read once, whoever comes first; a failure is only logged, and raised where it is asked for."""
    calls = []

    def load() -> Vocabulary:
        calls.append(1)
        return Vocabulary(size=3, texts=[b"a", b"b"], end_token_ids=[2])

    grammars = Grammars(load)
    grammars.prepare_soon()
    matcher = grammars.matcher(GrammarSpec.choice(["ab"]))
    allowed = matcher.allowed()
    assert allowed is not None
    assert allowed.tolist() == [True, False, False]
    assert calls == [1]

    def fail() -> Vocabulary:
        raise OSError("gone")

    broken = Grammars(fail)
    broken.prepare_soon()
    with pytest.raises(OSError, match="gone"):
        broken.compile(GrammarSpec.choice(["ab"]))
