"""What form an answer is asked to have: `response_format`, and vLLM's `structured_outputs`."""

from typing import Any

import msgspec

from ..engine.core.errors import InvalidRequest
from ..engine.core.grammar import GrammarSpec

RESPONSE_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """The schema of an answer; `name` and `description` are for readers."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's: text, json_object or json_schema; and structural_tag, in xgrammar's words."""

    type: str = "text"
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None

    def to_grammar(self) -> GrammarSpec | None:
        """None for text. Raises InvalidRequest."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return GrammarSpec.json_object(param="response_format")
            case "json_schema":
                return self._schema()
            case "structural_tag":
                return self._tag()
        raise InvalidRequest(
            f"response_format.type must be one of {', '.join(RESPONSE_FORMATS)}, not {self.type[:64]!r}.",
            param="response_format.type",
        )

    def _schema(self) -> GrammarSpec:
        given = self.json_schema
        where = "response_format.json_schema"
        if given is None:
            raise InvalidRequest(f"{where} is required with the type json_schema.", param=where)
        if given.schema is None:
            raise InvalidRequest(f"{where}.schema is required.", param=f"{where}.schema")
        return GrammarSpec.json_schema(given.schema, strict=given.strict is not False, param=f"{where}.schema")

    def _tag(self) -> GrammarSpec:
        parts = {name: getattr(self, name) for name in ("format", "structures", "triggers")}
        given = {name: value for name, value in parts.items() if value is not None}
        if not given:
            raise InvalidRequest(
                "response_format.format is required with the type structural_tag.", param="response_format.format"
            )
        return GrammarSpec.structural_tag(_as_format({"type": "structural_tag", **given}), param="response_format")


def _as_format(tag: dict[str, Any]) -> dict[str, Any]:
    """A structural tag as `structures` and `triggers`, which clients of vLLM still send, in the words of `format`;
    any other as it is."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if "format" in tag or not isinstance(structures, list):
        return tag
    tags = [
        {
            "type": "tag",
            "begin": part.get("begin"),
            "content": {"type": "json_schema", "json_schema": part.get("schema", True)},
            "end": part.get("end"),
        }
        for part in structures
        if isinstance(part, dict)
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's: exactly one of json, regex, choice, grammar, json_object and structural_tag."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None

    def to_grammar(self) -> GrammarSpec:
        """Raises InvalidRequest naming the part."""
        names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidRequest(
                f"structured_outputs takes exactly one of {', '.join(names)}, not {len(given)}.",
                param="structured_outputs",
            )
        if self.whitespace_pattern is not None:
            where = "structured_outputs.whitespace_pattern"
            raise InvalidRequest(f"{where} is not supported: there is disable_any_whitespace.", param=where)
        param = f"structured_outputs.{given[0]}"
        loose = not self.disable_any_whitespace
        value = getattr(self, given[0])
        match given[0]:
            case "json":
                return GrammarSpec.json_schema(value, any_whitespace=loose, param=param)
            case "json_object":
                return GrammarSpec.json_object(any_whitespace=loose, param=param)
            case "regex":
                return GrammarSpec.regex(value, param=param)
            case "choice":
                return GrammarSpec.choice(value, param=param)
            case "grammar":
                return GrammarSpec.ebnf(value, param=param)
        return GrammarSpec.structural_tag(_read_tag(value, param), param=param)


def _read_tag(tag: str | dict[str, Any], param: str) -> str | dict[str, Any]:
    """Given as an object or as its text. Raises InvalidRequest."""
    if isinstance(tag, str):
        try:
            tag = msgspec.json.decode(tag, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(f"{param} must be a JSON object.", param=param) from None
    return _as_format(tag)


def grammar_of(response_format: ResponseFormat | None, structured: StructuredOutputs | None) -> GrammarSpec | None:
    """The one constraint of a request, or none. Raises InvalidRequest for two."""
    by_format = None if response_format is None else response_format.to_grammar()
    if structured is None:
        return by_format
    if by_format is not None:
        raise InvalidRequest(
            "Give either response_format or structured_outputs: an answer has one form.", param="structured_outputs"
        )
    return structured.to_grammar()
