"""What form an answer must have: `GrammarSpec`, a constraint as the request states it.

Pure. Whether it can be compiled shows in `engine/grammar.py`; the device enforces it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from .errors import InvalidRequest

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "ebnf", "structural_tag"]

MARKS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<think>", "</think>"),
)
"""What calls and reasoning are marked with. In some vocabularies they are special tokens; a grammar must be able to
write them all the same."""

MAX_SOURCE_CHARACTERS = 256 * 1024
"""A constraint longer than this is refused before it is looked at."""
MAX_CHOICES = 1024


@attrs.frozen(kw_only=True)
class GrammarSpec:
    """A constraint. Two that are equal compile to the same grammar. Made by its class methods, which raise
    `InvalidRequest` naming `param`, the field of the request that it came in."""

    kind: GrammarKind
    source: str = ""
    """JSON text for json_schema, choice (a list of strings) and structural_tag; else the regex or the EBNF."""
    any_whitespace: bool = True
    """With JSON: let the model space and break lines as it likes; False: a single form."""
    strict: bool = True
    """With a JSON schema: an object has no properties but those that the schema names."""
    param: str = attrs.field(default="structured_outputs", eq=False)

    @classmethod
    def json_object(cls, *, any_whitespace: bool = True, param: str = "response_format") -> "GrammarSpec":
        """Any JSON object."""
        return cls(kind="json_object", any_whitespace=any_whitespace, param=param)

    @classmethod
    def json_schema(
        cls,
        schema: Mapping[str, Any] | bool | str,
        *,
        any_whitespace: bool = True,
        strict: bool = True,
        param: str = "response_format",
    ) -> "GrammarSpec":
        """JSON that a schema describes, given as an object or as JSON text."""
        source = _json_text(schema, param)
        return cls(kind="json_schema", source=source, any_whitespace=any_whitespace, strict=strict, param=param)

    @classmethod
    def regex(cls, pattern: str, *, param: str = "structured_outputs") -> "GrammarSpec":
        """A text that the whole pattern matches."""
        return cls(kind="regex", source=_text(pattern, "a regular expression", param), param=param)

    @classmethod
    def choice(cls, choices: Sequence[str], *, param: str = "structured_outputs") -> "GrammarSpec":
        """One of these texts."""
        if isinstance(choices, str) or not 1 <= len(choices) <= MAX_CHOICES:
            raise InvalidRequest(f"choice must be a list of 1 to {MAX_CHOICES} strings.", param=param)
        if not all(isinstance(choice, str) and choice for choice in choices):
            raise InvalidRequest("Each choice must be a string that is not empty.", param=param)
        return cls(kind="choice", source=_json_text(list(choices), param), param=param)

    @classmethod
    def ebnf(cls, grammar: str, *, param: str = "structured_outputs") -> "GrammarSpec":
        """A text of a grammar in EBNF (GBNF), whose start is `root`."""
        return cls(kind="ebnf", source=_text(grammar, "a grammar in EBNF", param), param=param)

    @classmethod
    def structural_tag(cls, tag: Mapping[str, Any] | str, *, param: str = "response_format") -> "GrammarSpec":
        """Free text with constrained parts, as xgrammar's structural tags describe them."""
        return cls(kind="structural_tag", source=_json_text(tag, param), param=param)


def _text(value: object, what: str, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what} must be a string that is not empty.".capitalize(), param=param)
    return _short(value, param)


def _json_text(value: object, param: str) -> str:
    try:
        # Through Python's reader in any case: one spelling for one meaning, so that equal schemas compile once.
        loaded = json.loads(value) if isinstance(value, str) else value
        return _short(json.dumps(loaded, ensure_ascii=False, separators=(",", ":"), allow_nan=False), param)
    except RecursionError:
        raise InvalidRequest(f"{param} is nested too deeply.", param=param) from None
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}.", param=param) from None


def _short(text: str, param: str) -> str:
    if len(text) > MAX_SOURCE_CHARACTERS:
        raise InvalidRequest(
            f"{param} may have {MAX_SOURCE_CHARACTERS} characters, this one has {len(text)}.", param=param
        )
    return text
