"""One request's story: what became of it and when, from its arrival to its end, kept for a while after it.

Pure. Moments are on the trio clock. A story takes numbers alone, never a text or a token, and its lists have bounds: of
what comes beyond them it keeps the count.
"""

import enum
import time

import attrs

from .core.events import FinishReason, PreemptReason
from .observer import AbortReason

EVENTS_MAX = 256
"""Chunks, and preemptions, that a story keeps of each: a prompt of half a million tokens in steps of 2,048."""


class StoryState(enum.StrEnum):
    """Where a request is, or was when it ended."""

    TOKENIZING = "tokenizing"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    ENDED = "ended"


@attrs.define(kw_only=True, eq=False)
class Story:
    """Written by the engine and its detokenizer, read by whoever looks."""

    name: str
    arrival_time: float
    created: float = attrs.field(factory=time.time)
    """Unix time."""
    tag: object = None
    """`RequestOptions.tag`."""
    num_choices: int = 1
    max_tokens: int | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int = 0
    tokenized_time: float | None = None
    admitted_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    ended_time: float | None = None
    chunks: list[tuple[float, int]] = attrs.field(factory=list)
    """When a part of its prompt was planned, and of how many tokens."""
    num_chunks: int = 0
    preemptions: list[tuple[float, PreemptReason]] = attrs.field(factory=list)
    num_preemptions: int = 0
    num_output_tokens: int = 0
    num_deltas: int = 0
    """How often its reader took something."""
    finish_reason: FinishReason | None = None
    abort_reason: AbortReason | None = None
    is_preempted: bool = False

    @property
    def state(self) -> StoryState:
        if self.ended_time is not None:
            return StoryState.ENDED
        if self.tokenized_time is None:
            return StoryState.TOKENIZING
        if self.admitted_time is None:
            return StoryState.WAITING
        if self.is_preempted:
            return StoryState.PREEMPTED
        return StoryState.PREFILL if self.first_token_time is None else StoryState.DECODE

    def tokenized(self, now: float, *, num_tokens: int, max_tokens: int | None) -> None:
        self.tokenized_time = now
        self.num_prompt_tokens = num_tokens
        self.max_tokens = max_tokens

    def chunk(self, now: float, num_tokens: int) -> None:
        self.is_preempted = False
        self.num_chunks += 1
        if len(self.chunks) < EVENTS_MAX:
            self.chunks.append((now, num_tokens))

    def preempted(self, now: float, reason: PreemptReason) -> None:
        self.is_preempted = True
        self.num_preemptions += 1
        if len(self.preemptions) < EVENTS_MAX:
            self.preemptions.append((now, reason))

    def ended(self, now: float, reason: FinishReason | None, why: AbortReason | None) -> None:
        """The first reason counts. `reason` None: only that it ended (it was refused, or the engine died)."""
        if self.ended_time is None:
            self.ended_time = now
        if self.finish_reason is None:
            self.finish_reason, self.abort_reason = reason, why
