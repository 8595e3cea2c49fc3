"""What the tests of the Responses API have in common: reading its streams."""

import json
from typing import Any


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream: each is named as its data says, and they are numbered."""
    events: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        named, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert named == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


def asked(**fields: Any) -> dict[str, Any]:
    return {"input": "Hi", **fields}
