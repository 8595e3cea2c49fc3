"""Looks through a JSON schema before it is compiled: for what would be left out of account, and for what would cost too
much.

Pure. The compiler refuses what it cannot read, but passes over some keywords in silence; an answer could then break its
schema. Those are refused here, by name.
"""

import re
from collections.abc import Iterator
from typing import Any

MAX_SUBSCHEMAS = 10_000
MAX_PROPERTIES = 256
"""Of one object: what may follow an optional property depends on all the others, so time grows with their square."""
MAX_ENUM = 4_000
"""Values of all enumerations together."""
MAX_DEPTH = 100

_IGNORED = ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "unevaluatedProperties")
_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_IN_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_INSIDE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "unevaluatedItems")
_OF_TYPES = {
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    "minItems": "array",
    "maxItems": "array",
    "minProperties": "object",
    "maxProperties": "object",
    "required": "object",
}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "$ref")
_BESIDE = frozenset((*_OF_TYPES, "properties", "patternProperties", "additionalProperties", "prefixItems", "enum"))
_LOOKAROUND = re.compile(r"\(\?<?[=!]")


def why_not(schema: Any) -> str | None:
    """Why the schema is refused; None: the compiler may see it."""
    num_values = 0
    for number, (part, depth) in enumerate(_parts(schema)):
        if number >= MAX_SUBSCHEMAS:
            return f"it has more than {MAX_SUBSCHEMAS} subschemas"
        if depth > MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep"
        num_values += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        if num_values > MAX_ENUM:
            return f"its enumerations have more than {MAX_ENUM} values"
        if (reason := _why_not_part(part)) is not None:
            return reason
    return None


def why_not_regex(pattern: str) -> str | None:
    """The same for a regular expression."""
    return "lookaround is not supported in a regular expression" if _LOOKAROUND.search(pattern) else None


def _why_not_part(part: dict[str, Any]) -> str | None:
    for keyword in _IGNORED:
        if keyword in part:
            return f"the keyword {keyword!r} is not supported"
    if part.get("uniqueItems") is True:
        return "the keyword 'uniqueItems' is not supported"
    if isinstance(part.get("multipleOf"), float) and not part["multipleOf"].is_integer():
        return "'multipleOf' is supported for integers alone"
    if isinstance(properties := part.get("properties"), dict) and len(properties) > MAX_PROPERTIES:
        return f"an object has {len(properties)} properties, {MAX_PROPERTIES} are supported"
    of_names = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(of_names if isinstance(of_names, dict) else ())):
        if isinstance(pattern, str) and (reason := why_not_regex(pattern)) is not None:
            return reason
    alternatives = [keyword for keyword in _ALTERNATIVES if keyword in part]
    beside = sorted(_BESIDE & part.keys())
    if alternatives and beside:
        return f"{beside[0]!r} beside {alternatives[0]!r} is not supported"
    if isinstance(every := part.get("allOf"), list) and len(every) > 1:
        return "'allOf' is supported with a single schema alone"
    if not alternatives and not {"type", "enum", "const", "properties"} & part.keys():
        for keyword, kind in _OF_TYPES.items():
            if keyword in part:
                return f"{keyword!r} is supported beside a 'type' alone ({kind!r})"
    return None


def _parts(schema: Any) -> Iterator[tuple[dict[str, Any], int]]:
    """Every subschema and how deep it stands. A stack, not recursion: the client chooses the depth."""
    stack = [(schema, 0)]
    while stack:
        part, depth = stack.pop()
        if not isinstance(part, dict):
            continue
        yield part, depth
        inner: list[Any] = [part[keyword] for keyword in _INSIDE if keyword in part]
        for keyword in _IN_MAPS:
            if isinstance(part.get(keyword), dict):
                inner += part[keyword].values()
        for keyword in _IN_LISTS:
            if isinstance(part.get(keyword), list):
                inner += part[keyword]
        stack += [(each, depth + 1) for each in inner]
