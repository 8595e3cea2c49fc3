"""Keeps JSON strings JSON: where a schema limits a string's length, xgrammar lets control characters into it, which no
reader of JSON takes. There the limit is said as a pattern that leaves them out.

Pure.
"""

import json
from typing import Any

_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_IN_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_INSIDE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "unevaluatedItems")
_LIMITS = ("minLength", "maxLength")
_PLAIN = "[ !#-\\[\\]-\ud7ff\ue000-\U0010ffff]"
"""Characters as they are, for xgrammar knows no `\\U`. No surrogates: it would let their bytes in as one character,
which readers take for three that are broken."""

MOST_REPEATED = 128
"""Of one thing in a row, in a pattern; see `_exactly`."""


def guarded_schema(source: str) -> str:
    """A JSON schema's text, rewritten."""
    schema = json.loads(source)
    _rewrite([schema])
    return json.dumps(schema, ensure_ascii=False)


def guarded_tag(source: str) -> str:
    """A structural tag's text, with the schemas in it rewritten."""
    tag = json.loads(source)
    stack, schemas = [tag], []
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if part.get("type") == "json_schema" or "begin" in part:
                schemas += [part[name] for name in ("json_schema", "schema") if name in part]
            stack += [value for name, value in part.items() if name not in ("json_schema", "schema")]
        elif isinstance(part, list):
            stack += part
    _rewrite(schemas)
    return json.dumps(tag, ensure_ascii=False)


def _rewrite(schemas: list[Any]) -> None:
    """In place. A stack, not recursion: the client chooses the depth."""
    stack = list(schemas)
    while stack:
        part = stack.pop()
        if not isinstance(part, dict):
            continue
        if not {"pattern", "format", "enum", "const"} & part.keys() and set(_LIMITS) & part.keys():
            _say_as_pattern(part)
        stack += [part[name] for name in _INSIDE if name in part]
        for name in _IN_MAPS:
            if isinstance(part.get(name), dict):
                stack += part[name].values()
        for name in _IN_LISTS:
            if isinstance(part.get(name), list):
                stack += part[name]


def _say_as_pattern(part: dict[str, Any]) -> None:
    low, high = part.get("minLength", 0), part.get("maxLength", "")
    if type(low) is not int or low < 0 or not (high == "" or (type(high) is int and high >= low)):
        return  # the compiler says what is wrong with them
    more = f"{_PLAIN}*" if high == "" else _at_most(_PLAIN, high - low)
    part["pattern"] = f"^{_exactly(_PLAIN, low)}{more}$"
    for name in _LIMITS:
        part.pop(name, None)


def _exactly(what: str, count: int) -> str:
    """A pattern repeated so often, in blocks: of more than 128 repetitions in a row xgrammar lets tokens come that it
    then refuses to take, those that go on behind the string's end. The masks of smaller blocks take 15 ms each."""
    if count <= MOST_REPEATED:
        return f"{what}{{{count}}}" if count else ""
    times, rest = divmod(count, MOST_REPEATED)
    return _exactly(_block(what), times) + _exactly(what, rest)


def _at_most(what: str, count: int) -> str:
    """The same, and fewer: some blocks and less than a block, or all blocks and the rest."""
    if count <= MOST_REPEATED:
        return f"{what}{{0,{count}}}"
    times, rest = divmod(count, MOST_REPEATED)
    block = _block(what)
    fewer = f"{_at_most(block, times - 1)}{what}{{0,{MOST_REPEATED - 1}}}"
    return f"({fewer}|{_exactly(block, times)}{what}{{0,{rest}}})"


def _block(what: str) -> str:
    return f"({what}{{{MOST_REPEATED}}})"
