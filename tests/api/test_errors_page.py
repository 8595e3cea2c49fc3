"""docs/errors.md has every error that a client can meet."""

import re
from collections.abc import Iterator
from pathlib import Path

import triolet.api.errors  # noqa: F401 - its classes are looked for
from triolet.api.openapi import EVERYWHERE, OPERATIONS
from triolet.engine.core.errors import EngineDead, RequestError, TrioletError

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
ROWS = {(int(row[0]), row[1], row[2]) for row in re.findall(r"^\| (\d+) \| (\w+) \| ([\w–]+) \|", PAGE, re.MULTILINE)}


def kinds(root: type[TrioletError]) -> Iterator[type[TrioletError]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds(kind)


def test_every_kind_of_error_has_a_row() -> None:
    """With its status, its type and its code; and no row is of an error that there is not."""
    ours = [*kinds(RequestError), EngineDead]
    known = {(kind.status, kind.type, kind.code or "–") for kind in ours if kind.__module__.startswith("triolet.")}
    assert known == ROWS


def test_every_status_of_the_openapi_document_has_a_row() -> None:
    """What the document says a route may answer, the page explains."""
    documented = {status for operation in OPERATIONS for status in (*EVERYWHERE, *operation.errors)}
    assert documented <= {status for status, _, _ in ROWS}
