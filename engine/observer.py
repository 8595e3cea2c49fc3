"""Who measures: the engine calls an observer with what it sees of each request.

Pure. All times are in seconds, taken where the text becomes ready to be read, so tokenizing, queueing and detokenizing
count, and the client's own slowness does not. An observer runs inside the detokenizer: it must neither wait nor raise.
"""

from typing import Protocol

from .core.events import FinishReason


class Observer(Protocol):
    """What can be observed. Subclass `NoObserver` to look at a part of it."""

    def first_token(self, seconds: float) -> None:
        """A request's first token, counted from the request's arrival."""

    def inter_token(self, seconds: float, count: int) -> None:
        """`count` further tokens of a request (one, mostly), this long after its last ones."""

    def finished(
        self,
        reason: FinishReason,
        *,
        e2e_seconds: float,
        queue_seconds: float,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        num_output_tokens: int,
    ) -> None:
        """The terminal event of a request that the scheduler had. `queue_seconds`: from arrival to admission, or to the
        end if it was never admitted."""


class NoObserver:
    """Looks away."""

    def first_token(self, seconds: float) -> None:
        pass

    def inter_token(self, seconds: float, count: int) -> None:
        pass

    def finished(
        self,
        reason: FinishReason,
        *,
        e2e_seconds: float,
        queue_seconds: float,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        num_output_tokens: int,
    ) -> None:
        pass
