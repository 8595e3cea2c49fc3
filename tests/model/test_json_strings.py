"""Strings whose length a schema limits: what may stand in them is JSON."""

import json
import re
from typing import Any

import pytest

from tests.model.answering import follows
from triolet.engine.core.grammar import GrammarSpec
from triolet.model.grammar import Grammars, grammars_of
from triolet.model.json_strings import guarded_schema, guarded_tag
from triolet.model.source import ModelSource
from triolet.model.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def grammars(builtin_source: ModelSource) -> Grammars:
    return grammars_of(builtin_source)


LIMITED = {"type": "string", "minLength": 1, "maxLength": 3}


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec.json_schema(LIMITED),
        GrammarSpec.json_schema({"anyOf": [LIMITED, {"type": "null"}]}),
        GrammarSpec.json_schema({"$defs": {"a": LIMITED}, "$ref": "#/$defs/a"}),
        GrammarSpec.structural_tag(
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": LIMITED}}
        ),
    ],
)
def test_a_limited_string_is_json(grammars: Grammars, builtin_tokenizer: ChatTokenizer, spec: GrammarSpec) -> None:
    """Its limits hold, and no control character or quotation mark gets in."""
    for text in ('"a"', '"aé"', '"a b"', '"😀"', '"\ud7ff\ue000\U0010ffff"', '"!#["', '"]~\x7f"'):
        assert follows(grammars, builtin_tokenizer, spec, text), text
    for text in ('""', '"abcd"', '"\t"', '"\x17"', '"\n"', '"a'):
        assert not follows(grammars, builtin_tokenizer, spec, text), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a", "maxLength": 3},
        {"type": "string", "minLength": -1},
        {"type": "string", "maxLength": True},
        {"type": "string", "minLength": 3, "maxLength": 1},
        {"enum": ["a"], "maxLength": 1},
        {"properties": {"maxLength": {"type": "integer"}}},
        {"const": {"maxLength": 1}},
        3,
    ],
)
def test_other_schemas_stay_as_they_are(schema: Any) -> None:
    """Also those that the compiler will refuse, and names that are no keywords."""
    assert json.loads(guarded_schema(json.dumps(schema))) == schema
    tag = {"format": {"type": "json_schema", "json_schema": schema}}
    assert json.loads(guarded_tag(json.dumps(tag))) == tag


def test_a_limited_string_has_no_surrogates() -> None:
    """Their bytes are no text: a reader would count three broken characters where the limit counted one."""
    pattern = json.loads(guarded_schema(json.dumps(LIMITED)))["pattern"]
    assert re.search(pattern, "\ud7ff\ue000")
    assert not re.search(pattern, "\ud800")
    assert not re.search(pattern, "a\udfff")
