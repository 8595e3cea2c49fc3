"""GET /v1/requests and /v1/requests/{id}: what became of requests, as JSON. Numbers and moments, never a text.

Pure. Moments are in seconds since the request's arrival.
"""

from typing import Any

from ..engine.core.errors import InvalidRequest
from ..engine.story import Story, StoryState

LIST_MAX = 1000
"""Most requests of a list; the newest ones."""


def read_state(text: str | None) -> StoryState | None:
    """Raises InvalidRequest."""
    if text is None:
        return None
    try:
        return StoryState(text)
    except ValueError:
        known = ", ".join(StoryState)
        raise InvalidRequest(f"state must be one of {known}, not {text[:64]!r}.", param="state") from None


def list_of(stories: list[Story], state: StoryState | None) -> dict[str, Any]:
    """Those in that state, or all, newest first and without their events."""
    chosen = [story for story in stories if state is None or story.state is state]
    return {"object": "list", "data": [summary_of(story) for story in chosen[:LIST_MAX]]}


def summary_of(story: Story) -> dict[str, Any]:
    return {
        "id": story.name,
        "object": "request",
        "created": int(story.created),
        "state": story.state,
        "n": story.num_choices,
        "max_tokens": story.max_tokens,
        "prompt_tokens": story.num_prompt_tokens,
        "cached_tokens": story.num_cached_tokens,
        "output_tokens": story.num_output_tokens,
        "deltas": story.num_deltas,
        "chunks": story.num_chunks,
        "preemptions": story.num_preemptions,
        "queue_seconds": _since(story, story.admitted_time),
        "time_to_first_token_seconds": _since(story, story.first_token_time),
        "e2e_seconds": _since(story, story.ended_time),
        "finish_reason": story.finish_reason,
        "abort_reason": story.abort_reason,
    }


def story_of(story: Story) -> dict[str, Any]:
    """All of it, its events in their order."""
    events: list[dict[str, Any]] = [{"event": "queued", "at": 0.0}]

    def tell(event: str, moment: float | None, **more: Any) -> None:
        if moment is not None:
            events.append({"event": event, "at": moment - story.arrival_time, **more})

    tell("tokenized", story.tokenized_time, tokens=story.num_prompt_tokens)
    tell("admitted", story.admitted_time, cached_tokens=story.num_cached_tokens)
    for moment, num_tokens in story.chunks:
        tell("chunk", moment, tokens=num_tokens)
    for moment, reason in story.preemptions:
        tell("preempted", moment, reason=reason)
    tell("first_token", story.first_token_time)
    tell("last_token", story.last_token_time, tokens=story.num_output_tokens, deltas=story.num_deltas)
    tell("end", story.ended_time, finish_reason=story.finish_reason, abort_reason=story.abort_reason)
    events.sort(key=lambda event: float(event["at"]))
    return {**summary_of(story), "events": events}


def _since(story: Story, moment: float | None) -> float | None:
    return None if moment is None else moment - story.arrival_time
