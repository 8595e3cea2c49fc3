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
MAX_COUNT = 100_000
"""Of a length or a repetition: the compiler counts in 32 bits, and a string of so many characters takes it a second."""

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
_COUNTS = tuple(f"{end}{what}" for what in ("Length", "Items", "Properties", "Contains") for end in ("min", "max"))
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "$ref")
_BESIDE = frozenset((*_OF_TYPES, "properties", "patternProperties", "additionalProperties", "prefixItems", "enum"))
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_LONG = re.compile(f"[1-9][0-9]{{{len(str(MAX_COUNT)) - 1}}}")
_LINE_ENDS = "\r\n"
_NUMBER = re.compile(r"0*([1-9][0-9]*)")


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
    if _LOOKAROUND.search(pattern):
        return "lookaround is not supported in a regular expression"
    return _why_not_counts(pattern)


def why_not_ebnf(grammar: str) -> str | None:
    """The same for a grammar."""
    return _why_not_counts(grammar, quotes='"', comments="#")


def why_not_tag(tag: Any) -> str | None:
    """The same for all that stands in a structural tag."""
    stack = [tag]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        if not isinstance(part, dict):
            continue
        if part.get("type") == "repeat":
            for end in ("min", "max"):
                if isinstance(count := part.get(end), int | float) and count > MAX_COUNT:
                    return f"{end!r} of a repeat may be at most {MAX_COUNT}, not {_shown(count)}"
        checks = ((why_not, "json_schema"), (why_not, "schema"), (why_not_regex, "pattern"), (why_not_ebnf, "grammar"))
        for check, name in checks:
            if (value := part.get(name)) is None or isinstance(value, str) == (check is why_not):
                continue
            if (reason := check(value)) is not None:
                return reason
        stack += [value for name, value in part.items() if name not in ("json_schema", "schema")]
    return None


def _why_not_counts(text: str, *, quotes: str = "", comments: str = "") -> str | None:
    """Repetitions with too large counts. What stands in brackets, or between `quotes`, is text, and what one of
    `comments` begins counts nothing to the end of its line. One look at each character, and none where no number is
    long enough."""
    if _LONG.search(text) is None:
        return None
    closings = {"[": "]"} | {quote: quote for quote in quotes} | dict.fromkeys(comments, _LINE_ENDS)
    escaped, closing, in_count = False, "", False
    for place, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\" and closing != _LINE_ENDS:
            escaped = True
        elif closing:
            closing = "" if character in closing else closing
        elif character in closings:
            closing = closings[character]
        elif character == "{":
            in_count = True
        elif not (character.isspace() or character == "," or character.isdecimal()):
            in_count = False
        elif in_count and not text[place - 1].isdecimal() and (found := _NUMBER.match(text, place)) is not None:
            digits = found[1]
            if len(digits) > len(str(MAX_COUNT)) or int(digits) > MAX_COUNT:
                return f"a repetition {{n,m}} may have counts up to {MAX_COUNT}, not {digits[:32]}"
    return None


def _why_not_part(part: dict[str, Any]) -> str | None:
    for keyword in _IGNORED:
        if keyword in part:
            return f"the keyword {keyword!r} is not supported"
    if part.get("uniqueItems") is True:
        return "the keyword 'uniqueItems' is not supported"
    if isinstance(part.get("multipleOf"), float) and not part["multipleOf"].is_integer():
        return "'multipleOf' is supported for integers alone"
    for keyword in _COUNTS:
        if isinstance(count := part.get(keyword), int | float) and count > MAX_COUNT:
            return f"{keyword!r} may be at most {MAX_COUNT}, not {_shown(count)}"
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


def _shown(count: float) -> str:
    """A number that may have thousands of digits."""
    return str(count) if count < 1e30 else "a number of more than 30 digits"
