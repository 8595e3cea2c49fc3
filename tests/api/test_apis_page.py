"""docs/apis.md has every field of the two other chat surfaces, and every route of theirs."""

from pathlib import Path

import msgspec
import pytest

from triolet.api.anthropic.requests import MessagesRequest
from triolet.api.openapi import OPERATIONS
from triolet.api.responses.requests import ResponsesRequest

PAGE = (Path(__file__).parents[2] / "docs" / "apis.md").read_text()
RESPONSES, MESSAGES = PAGE.split("\n## ")[1:3]


@pytest.mark.parametrize(("section", "type_"), [(RESPONSES, ResponsesRequest), (MESSAGES, MessagesRequest)])
def test_every_field_is_said_to_be_served_or_not(section: str, type_: type[msgspec.Struct]) -> None:
    """A new one cannot be forgotten."""
    for field in msgspec.structs.fields(type_):
        assert f"`{field.encode_name}" in section or f"`{field.encode_name}." in section, field.name


def test_every_route_is_there() -> None:
    """By its last part."""
    for operation in OPERATIONS:
        for section, start in ((RESPONSES, "/v1/responses"), (MESSAGES, "/v1/messages")):
            if operation.path.startswith(start):
                last = operation.path.rpartition("/")[2].replace("response_id", "id")
                assert last in section, operation.path
                assert operation.method.upper() in section
