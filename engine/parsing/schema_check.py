"""Looks through the schema of a function's parameters before anybody else does: whether it is one, and how large.

Pure, linear, and it compiles nothing: a pattern is looked at for what makes it no pattern in any dialect.
"""

from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 20_000
"""Objects, lists and values of one schema together."""
MAX_PATTERN = 4096
"""Characters."""

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_IN_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_INSIDE = ("additionalProperties", "contains", "propertyNames", "not", "if", "then", "else", "unevaluatedItems")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def why_malformed(schema: Any) -> tuple[str, str] | None:
    """Where it is wrong (".properties.city.type"; empty: at the top) and what is; None: it may be used."""
    if (reason := _why_too_large(schema)) is not None:
        return "", reason
    if not isinstance(schema, dict):
        return "", "must be an object"
    if schema.get("type", "object") != "object":
        return ".type", f'must be "object", not {_shown(schema["type"])}: arguments have names'
    for place, part in _subschemas(schema):
        if not isinstance(part, dict | bool):
            return place, f"must be a schema, not {_shown(part)}"
        if isinstance(part, dict) and (found := _why_not_part(part)) is not None:
            return place + found[0], found[1]
    return None


def why_not_pattern(pattern: str) -> str | None:
    """Why it is no regular expression; None: it looks like one."""
    if len(pattern) > MAX_PATTERN:
        return f"may have {MAX_PATTERN} characters, not {len(pattern)}"
    depth, in_class, repeats, escaped = 0, False, False, False
    for character in pattern:
        if escaped:
            escaped, repeats = False, True
        elif character == "\\":
            escaped = True
        elif in_class:
            in_class = character != "]"
            repeats = True
        elif character == "[":
            in_class = True
        elif character in "*+" and not repeats:
            return f"is no regular expression: nothing before {character!r} that could be repeated"
        else:
            depth += (character == "(") - (character == ")")
            if depth < 0:
                return "is no regular expression: a bracket is closed that was not opened"
            repeats = character not in "(|"
    if escaped:
        return "is no regular expression: it ends with a backslash"
    if depth or in_class:
        return "is no regular expression: a bracket is not closed"
    return None


def _why_too_large(schema: Any) -> str | None:
    """A stack, not recursion: the client chooses the depth."""
    stack = [(schema, 1)]
    num_nodes = 0
    while stack:
        node, depth = stack.pop()
        num_nodes += 1
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} deep"
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if num_nodes + len(stack) + len(inner) > MAX_NODES:
            return f"has more than {MAX_NODES} parts"
        stack += [(each, depth + 1) for each in inner]
    return None


def _subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Each with its place."""
    stack = [("", schema)]
    while stack:
        place, part = stack.pop()
        yield place, part
        if not isinstance(part, dict):
            continue
        stack += [(f"{place}.{name}", part[name]) for name in _INSIDE if name in part]
        for name in _IN_MAPS:
            if isinstance(inner := part.get(name), dict):
                stack += [(f"{place}.{name}.{key}", value) for key, value in inner.items()]
        for name in _IN_LISTS:
            if isinstance(inner := part.get(name), list):
                stack += [(f"{place}.{name}[{index}]", value) for index, value in enumerate(inner)]
        items = part.get("items")
        for index, value in enumerate(items if isinstance(items, list) else [items] if "items" in part else []):
            stack.append((f"{place}.items[{index}]" if isinstance(items, list) else f"{place}.items", value))


def _why_not_part(part: dict[str, Any]) -> tuple[str, str] | None:
    """The keyword and what is wrong with it."""
    if "type" in part:
        kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
        for kind in kinds:
            if kind not in TYPES:
                return ".type", f"must be one of {', '.join(TYPES)}, not {_shown(kind)}"
        if not kinds:
            return ".type", "must not be empty"
    for name in _IN_MAPS:
        if name in part and not isinstance(part[name], dict):
            return f".{name}", f"must be an object, not {_shown(part[name])}"
    for name in (*_IN_LISTS, "enum"):
        if name in part and not (isinstance(part[name], list) and part[name]):
            return f".{name}", f"must be a list that is not empty, not {_shown(part[name])}"
    if "required" in part:
        names = part["required"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return ".required", f"must be a list of names, not {_shown(names)}"
    for name in _COUNTS:
        if name in part and (type(part[name]) is not int or not 0 <= part[name] < 2**31):
            return f".{name}", f"must be an integer of at least 0, not {_shown(part[name])}"
    for name in _NUMBERS:
        if name in part and (isinstance(part[name], bool) or not isinstance(part[name], int | float)):
            return f".{name}", f"must be a number, not {_shown(part[name])}"
    return _why_not_texts(part)


def _why_not_texts(part: dict[str, Any]) -> tuple[str, str] | None:
    for name in ("pattern", "format", "$ref"):
        if name in part and not isinstance(part[name], str):
            return f".{name}", f"must be a string, not {_shown(part[name])}"
    if "pattern" in part and (reason := why_not_pattern(part["pattern"])) is not None:
        return ".pattern", reason
    for pattern in part.get("patternProperties", ()):
        if (reason := why_not_pattern(pattern)) is not None:
            return ".patternProperties", reason
    if not part.get("$ref", "#").startswith("#"):
        return ".$ref", "must point into the schema itself (#…)"
    return None


def _shown(value: object) -> str:
    text = f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)
    return text[:64]
