"""The reference: one HTML page of every route and every type, made from the OpenAPI document. Pure.

It holds no script and fetches nothing but its style, which lies among the page's files. Everything that comes from the
document is escaped.
"""

from functools import cache
from html import escape
from typing import Any

import msgspec

PATH = "/ui/docs"
"""Among the page's files, so that what opens those opens it."""

_LIMITS = (
    ("minimum", "at least"),
    ("maximum", "at most"),
    ("minLength", "at least this long:"),
    ("maxLength", "at most this long:"),
    ("minItems", "entries, at least"),
    ("maxItems", "entries, at most"),
    ("maxProperties", "entries, at most"),
)
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Triolet: reference</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="css/reference.css">
</head>
<body>
"""


@cache
def reference(document: bytes) -> bytes:
    """The page of an OpenAPI document, as `openapi.document` makes it."""
    told = msgspec.json.decode(document)
    paths = told["paths"].items()
    routes = [(path, method, operation) for path, methods in paths for method, operation in methods.items()]
    schemas = told["components"]["schemas"]
    parts = [
        _HEAD,
        f"<header><h1>{escape(told['info']['title'])} {escape(told['info']['version'])}</h1>",
        "<p>Every route and every field. GET /openapi.json has the same for programs.</p></header>",
        "<nav><h2>Routes</h2><ul>",
        *(f'<li><a href="#{_route_id(path, method)}">{_route(path, method)}</a></li>' for path, method, _ in routes),
        "</ul></nav><main>",
        *(_operation(path, method, operation) for path, method, operation in routes),
        "<h2>Types</h2>",
        *(_type(name, schema) for name, schema in schemas.items()),
        "</main></body></html>\n",
    ]
    return "".join(parts).encode()


def _route_id(path: str, method: str) -> str:
    return escape(method + path.replace("/", "-").replace("{", "").replace("}", ""))


def _route(path: str, method: str) -> str:
    return f"<code><b>{escape(method.upper())}</b> {escape(path)}</code>"


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [f'<section id="{_route_id(path, method)}"><h3>{_route(path, method)}</h3>']
    lines.append(f"<p>{_text(operation['summary'])}</p>")
    if operation.get("security") == []:
        lines.append("<p>Needs no key.</p>")
    lines += [
        f"<p>In the {escape(given['in'])}: <code>{escape(given['name'])}</code></p>"
        for given in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        lines.append(f"<p>Takes {_content(operation['requestBody']['content'])}</p>")
    answers = operation["responses"]
    errors = ", ".join(status for status in answers if status != "200")
    lines.append(f"<p>Answers {_content(answers['200']['content'])}; errors {errors}</p>")
    lines.append("</section>")
    return "".join(lines)


def _content(content: dict[str, Any]) -> str:
    kinds = []
    for kind, entry in content.items():
        kinds.append(escape(kind) + (f": {_kind(entry['schema'])}" if "schema" in entry else ""))
    return " or ".join(kinds)


def _type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(field)}</code></td><td>{_kind(kind)}</td>"
        f"<td>{'required' if field in required else _default(kind)}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    ]
    table = f"<table><tr><th>field</th><th>type</th><th>default</th></tr>{''.join(rows)}</table>" if rows else ""
    told = f"<p>{_text(schema['description'])}</p>" if "description" in schema else ""
    return f'<section id="{escape(name)}"><h3>{escape(name)}</h3>{told}{table}</section>'


def _default(schema: dict[str, Any]) -> str:
    return f"<code>{_json(schema['default'])}</code>" if "default" in schema else ""


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a line: its type, what is in it, and its limits."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"<code>{_json(value)}</code>" for value in schema["enum"])
    said = escape(str(schema.get("type", "anything")))
    if "prefixItems" in schema:
        said += f" of {', '.join(map(_kind, schema['prefixItems']))}"
    elif isinstance(schema.get("items"), dict):
        said += f" of ({_kind(schema['items'])})"
    if isinstance(schema.get("additionalProperties"), dict):
        said += f" of ({_kind(schema['additionalProperties'])})"
    limits = [f"{words} {_json(schema[name])}" for name, words in _LIMITS if name in schema]
    return f"{said} ({', '.join(limits)})" if limits else said


def _json(value: Any) -> str:
    return escape(msgspec.json.encode(value).decode())


def _text(text: str) -> str:
    """What a docstring says; its backticks mark code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
