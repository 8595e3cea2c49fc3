"""A function's parameters one by one, for formats that write them so.

Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..core.errors import InvalidRequest
from .calls import MAX_SPACE, Function

_TOP = ("anyOf", "oneOf", "allOf", "$ref", "enum", "const", "patternProperties")
_SHARED = ("$defs", "definitions")


@attrs.frozen(kw_only=True)
class Parameters:
    """Schemas by name, each with the definitions that it may refer to."""

    required: Mapping[str, Any]
    optional: Mapping[str, Any]

    @classmethod
    def of(cls, function: Function, format: str) -> "Parameters":
        """Raises InvalidRequest for a schema that has no parameters to take apart."""
        schema = function.parameters
        for keyword in _TOP:
            if keyword in schema:
                raise InvalidRequest(
                    f"The parameters of {function.name} cannot be enforced in the format {format}: "
                    f"{keyword!r} at the top of the schema.",
                    param="tools",
                )
        shared = {name: schema[name] for name in _SHARED if name in schema}
        whole = {
            name: {**inner, **shared} if isinstance(inner, Mapping) else inner
            for name, inner in (schema.get("properties") or {}).items()
        }
        names = set(schema.get("required") or ())
        return cls(
            required={name: whole[name] for name in whole if name in names},
            optional={name: whole[name] for name in whole if name not in names},
        )


def sequence(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(parts) or [{"type": "const_string", "value": ""}]}


def json_value(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_SPACE}


def optional(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "optional", "content": part}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}
