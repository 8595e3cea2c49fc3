"""Typed reading of a model's configuration, from JSON or from GGUF metadata.

Imports no torch. Promises that a missing or ill-typed field is a `ModelLoadError` naming the field and the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..engine.core.errors import ModelLoadError

_REQUIRED: Any = object()


@attrs.frozen
class Fields:
    """The fields of one configuration; `prefix` is put before each name in look-ups and messages."""

    file: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def fail(self, name: str, what: str) -> ModelLoadError:
        """An error about a field, to be raised."""
        return ModelLoadError(f"{self.file}: {self.prefix}{name} {what}.")

    def raw(self, name: str) -> Any:
        """The value as it stands; None where it is absent."""
        return self.values.get(self.prefix + name)

    def count(self, name: str, default: int = _REQUIRED) -> int:
        """A whole number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(name, f"must be a whole number above 0, not {value!r}")
        return value

    def number(self, name: str, default: float = _REQUIRED) -> float:
        """A number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.fail(name, f"must be a number above 0, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"must be true or false, not {value!r}")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id, a list of them, or none."""
        value = self.raw(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise self.fail(name, f"must be a token id or a list of them, not {value!r}")
        return tuple(i for i in ids if i >= 0)  # some files write -1 for none

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.fail(name, "is missing")
        return default
