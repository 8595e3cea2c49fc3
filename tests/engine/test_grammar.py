"""A request's constraint before it is scheduled: compiled beside the engine, refused with a reason, within a time."""

import threading
from typing import Any

import pytest
import trio
import trio.testing

from triolet.engine import grammar as grammar_module
from triolet.engine.core.errors import InvalidRequest, Overloaded
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.grammar import GrammarClient
from triolet.engine.json_schema import MAX_COUNT, MAX_DEPTH, MAX_ENUM, MAX_PROPERTIES, MAX_SUBSCHEMAS, why_not
from triolet.engine.open import run_engine

from .simulated import simulate
from .test_generate import ask, text_of


class FakeCompiler:
    """Compiles at once, but "slow", which waits for `go`, and "bad", which it refuses."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.compiled: list[str] = []
        self.threads: set[int] = set()

    def has(self, spec: GrammarSpec) -> bool:
        return spec.source in self.compiled and spec.source != "bad"

    def prepare(self) -> None:
        self.threads.add(threading.get_ident())

    def compile(self, spec: GrammarSpec) -> object:
        if spec.source == "slow":
            self.go.wait()
        self.compiled.append(spec.source)
        if spec.source == "bad":
            raise InvalidRequest(f"{spec.param} cannot be compiled: bad.", param=spec.param)
        return object()


def spec(source: str) -> GrammarSpec:
    return GrammarSpec.regex(source)


async def test_a_constraint_is_compiled_once_and_in_another_thread() -> None:
    """The second request finds it, or the reason why not."""
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    for _ in range(2):
        await client.prepare(spec("good"))
        with pytest.raises(InvalidRequest, match=r"structured_outputs cannot be compiled: bad\.") as caught:
            await client.prepare(spec("bad"))
        assert caught.value.param == "structured_outputs"
    with pytest.raises(InvalidRequest, match=r"response_format cannot be compiled: bad\."):
        await client.prepare(GrammarSpec.regex("bad", param="response_format"))
    assert compiler.compiled == ["good", "bad", "bad"]
    assert threading.get_ident() not in compiler.threads


async def test_a_constraint_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is left to finish; meanwhile others wait, and are told when that takes too long."""
    monkeypatch.setattr(grammar_module, "COMPILE_S", 0.01)
    monkeypatch.setattr(grammar_module, "WAIT_S", 0.01)
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    with pytest.raises(InvalidRequest, match=r"structured_outputs cannot be compiled: it takes more than 0.01 s."):
        await client.prepare(spec("slow"))
    with pytest.raises(Overloaded, match="Too many constraints wait to be compiled"):
        await client.prepare(spec("good"))
    monkeypatch.setattr(grammar_module, "COMPILE_S", 60)
    monkeypatch.setattr(grammar_module, "WAIT_S", 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.prepare, spec("good"))
        compiler.go.set()
    assert compiler.compiled == ["slow", "good"]


async def test_whoever_leaves_while_it_is_compiled_leaves_nothing() -> None:
    """The next one gets its turn when the thread has ended."""
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.prepare, spec("slow"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    compiler.go.set()
    await client.prepare(spec("good"))
    assert compiler.compiled == ["slow", "good"]


async def test_an_engine_refuses_a_constraint_before_it_is_scheduled() -> None:
    """Where nothing compiles, what cannot be compiled, and what nobody may ask; other requests are answered."""
    async with run_engine(simulate().parts) as engine:
        with pytest.raises(InvalidRequest, match="takes no constraints"):
            await ask(engine, "hello\n", grammar=spec("a"))
    simulation = simulate(grammars=FakeCompiler(), step_s=0.0)
    async with run_engine(simulation.parts, check=True) as engine:
        with pytest.raises(InvalidRequest, match="bad"):
            await ask(engine, "hello\n", grammar=spec("bad"))
        with pytest.raises(InvalidRequest, match="lookaround is not supported in a regular expression"):
            await ask(engine, "hello\n", grammar=spec("(?=a)b"))
        assert text_of(await ask(engine, "hello\n", grammar=spec("good"))) == "hello"
    assert simulation.all_blocks_are_back


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {}}, "the keyword 'not' is not supported"),
        ({"properties": {"a": {"if": {}}}}, "the keyword 'if' is not supported"),
        ({"items": {"uniqueItems": True}}, "the keyword 'uniqueItems' is not supported"),
        ({"type": "number", "multipleOf": 0.5}, "'multipleOf' is supported for integers alone"),
        ({"$defs": {"a": {"type": "string", "pattern": "a(?!b)"}}}, "lookaround is not supported in a regular"),
        ({"anyOf": [{}], "properties": {}}, "'properties' beside 'anyOf' is not supported"),
        ({"allOf": [{}, {}]}, "'allOf' is supported with a single schema alone"),
        ({"minimum": 3}, "'minimum' is supported beside a 'type' alone"),
        ({"properties": {str(number): {} for number in range(MAX_PROPERTIES + 1)}}, "an object has 257 properties"),
        ({"enum": list(range(MAX_ENUM + 1))}, "its enumerations have more than 4000 values"),
        (nested(MAX_DEPTH + 1), "it is nested more than 100 deep"),
        ({"anyOf": [{}] * MAX_SUBSCHEMAS}, "it has more than 10000 subschemas"),
    ],
)
def test_a_schema_that_would_not_be_kept_to_is_refused(schema: Any, reason: str) -> None:
    """What the compiler would pass over, and what would take it too long."""
    said = why_not(schema)
    assert said is not None
    assert said.startswith(reason)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object", "properties": {"not": {"type": "string"}, "if": {"const": 1}}, "required": ["not"]},
        {"properties": {"a": {"$ref": "#/$defs/a", "description": "x"}}, "$defs": {"a": {"type": ["string", "null"]}}},
        {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None, "title": "A"},
        {"type": "string", "enum": ["a"]},
        {"patternProperties": [{}], "multipleOf": "x", "properties": [1], "enum": 3, "pattern": 1},
        {"type": "array", "uniqueItems": False, "items": {"type": "integer", "multipleOf": 2}},
    ],
)
def test_what_clients_send_passes(schema: Any) -> None:
    """A property may have any name; what explains one stands anywhere; what is none the compiler sees."""
    assert why_not(schema) is None


HUGE = 10**12


@pytest.mark.parametrize("count", [MAX_COUNT + 1, 2**32 + 5, HUGE, 1e300])
@pytest.mark.parametrize(
    "keyword", ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
)
async def test_a_count_too_large_is_refused_by_name(keyword: str, count: float) -> None:
    """Before the compiler sees it, which counts in 32 bits; wherever the schema stands, in a structural tag too."""
    kind = {"Length": "string", "Items": "array", "Properties": "object"}[keyword[3:]]
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": kind, keyword: count}]}}}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    legacy = {"type": "structural_tag", "structures": [{"begin": "<", "schema": schema, "end": ">"}], "triggers": ["<"]}
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    for spec in (GrammarSpec.json_schema(schema), GrammarSpec.structural_tag(tag), GrammarSpec.structural_tag(legacy)):
        with pytest.raises(InvalidRequest) as caught:
            await client.prepare(spec)
        said = f"response_format cannot be compiled: '{keyword}' may be at most {MAX_COUNT}, not "
        assert caught.value.message.startswith(said)
    assert not compiler.compiled
    assert why_not({"type": kind, keyword: MAX_COUNT}) is None


@pytest.mark.parametrize(
    "pattern",
    [
        f"a{{{HUGE}}}",
        f"a{{1,{HUGE}}}",
        f"(b|[cd]){{{HUGE},}}",
        f"a{{ 1 , 00{MAX_COUNT + 1} }}",
        "a{" + "9" * 5000 + "}",
    ],
)
async def test_a_repetition_too_often_is_refused_with_the_limit(pattern: str) -> None:
    """In a pattern, of a schema or a tag as well, and in a grammar."""
    client = GrammarClient(FakeCompiler())
    for spec in (
        GrammarSpec.regex(pattern),
        GrammarSpec.ebnf(f'root ::= "x" {pattern}'),
        GrammarSpec.json_schema({"type": "string", "pattern": pattern}),
        GrammarSpec.structural_tag({"type": "structural_tag", "format": {"type": "regex", "pattern": pattern}}),
        GrammarSpec.structural_tag({"type": "structural_tag", "format": {"type": "grammar", "grammar": pattern}}),
    ):
        with pytest.raises(InvalidRequest, match=r"a repetition \{n,m\} may have counts up to 100000, not \d{1,32}\.$"):
            await client.prepare(spec)


@pytest.mark.parametrize("line_end", ["\n", "\r"])
@pytest.mark.parametrize("comment", ['# "', "# [", "# a{", "# \\", '"#" # "'])
async def test_a_comment_hides_no_repetition(comment: str, line_end: str) -> None:
    """A quote, a bracket or a backslash in it begins nothing; what counts in the comment itself counts nothing."""
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    rule = '"x" ' if comment.startswith('"') else ""
    with pytest.raises(InvalidRequest, match=r"a repetition \{n,m\}"):
        await client.prepare(GrammarSpec.ebnf(f'{rule}{comment}{line_end}root ::= "a"{{{HUGE}}}'))
    harmless = GrammarSpec.ebnf(f'root ::= "a" {comment} {{{HUGE}}}')
    await client.prepare(harmless)
    assert compiler.compiled == [harmless.source]


@pytest.mark.parametrize("end", ["min", "max"])
async def test_a_repeat_of_a_tag_too_often_is_refused_with_the_limit(end: str) -> None:
    """Wherever it stands in a structural tag."""
    client = GrammarClient(FakeCompiler())
    for count, passes in ((MAX_COUNT, True), (MAX_COUNT + 1, False), (2**32 + 1, False)):
        repeat = {"type": "repeat", "content": {"type": "const_string", "value": "a"}, "min": 0, "max": -1, end: count}
        spec = GrammarSpec.structural_tag(
            {"type": "structural_tag", "format": {"type": "sequence", "elements": [repeat]}}
        )
        if passes:
            await client.prepare(spec)
        else:
            with pytest.raises(InvalidRequest, match=f"'{end}' of a repeat may be at most {MAX_COUNT}, not {count}"):
                await client.prepare(spec)


async def test_long_constraints_are_looked_through_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads would keep the interpreter from the streams. Who waits too long for that hears so."""
    begun: list[str] = []
    go = threading.Event()

    def look(pattern: str) -> None:
        begun.append(pattern[0])
        go.wait()

    monkeypatch.setattr(grammar_module, "why_not_regex", look)
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    long = [letter * (grammar_module.MAX_AT_ONCE + 1) for letter in "abcd"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.prepare, spec(long[0]))
        while not begun:
            await trio.testing.wait_all_tasks_blocked(0.001)
        monkeypatch.setattr(grammar_module, "WAIT_S", 0)
        with pytest.raises(Overloaded, match="Too many constraints wait"):
            await client.prepare(spec(long[1]))
        monkeypatch.setattr(grammar_module, "WAIT_S", 1000)
        for source in long[2:]:
            nursery.start_soon(client.prepare, spec(source))
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["a"]
        go.set()
    assert sorted(begun) == ["a", "c", "d"]
    assert sorted(compiler.compiled) == sorted([long[0], *long[2:]])


async def test_numbers_that_count_nothing_pass() -> None:
    """In brackets, quoted, without braces; and a count at the limit. A long constraint is looked at in a thread."""
    compiler = FakeCompiler()
    client = GrammarClient(compiler)
    specs = [
        *map(GrammarSpec.regex, (f"[{{{HUGE}}}]", f"\\{{{HUGE}}}", f"{HUGE}", f"a{{{MAX_COUNT}}}", f"a{{0,2}}{HUGE}")),
        GrammarSpec.ebnf(f'root ::= "a{{{HUGE}}}" "{{" [{{{HUGE}}}]'),
        GrammarSpec.regex("[{" * 50_000 + f"]{HUGE}"),
    ]
    for spec in specs:
        await client.prepare(spec)
    assert compiler.compiled == [spec.source for spec in specs]
    with pytest.raises(InvalidRequest, match="lookaround"):
        await client.prepare(GrammarSpec.regex("a" * 100_000 + "(?=b)"))
