"""Every error that the allocator raises on purpose.

    KVCacheError
    ├── DoubleFree             a block is given back more often than it was taken
    ├── StaleMatch             blocks of a match went to somebody else before it was admitted: match again
    ├── SequenceStateError     the handle is not in a state in which this can be done to it
    ├── StepOrderError         steps begin and land in increasing order
    └── PinLimitExceeded       the pin would keep more blocks from eviction than the limit allows
    LawBroken (AssertionError) `check()` found a law broken: a fault of the allocator itself, named by the law's number

All but PinLimitExceeded mean that the caller is at fault. Except after DoubleFree, which no table that obeys the laws
causes, the allocator's state is as it was before the call.
"""


class KVCacheError(Exception):
    """The root."""


class DoubleFree(KVCacheError):
    """A block was released that nobody owns."""


class StaleMatch(KVCacheError):
    """A block named by the match no longer holds what it held when it was matched."""


class SequenceStateError(KVCacheError):
    """The handle holds blocks where it must hold none, or reaches less far than the call needs."""


class StepOrderError(KVCacheError):
    """A step began twice or out of order, or landed without having begun."""


class PinLimitExceeded(KVCacheError):
    """The pin needs more blocks than `max_pinned_blocks` leaves."""


class LawBroken(AssertionError):
    """A law does not hold. Raised explicitly, so that `python -O` does not silence it."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(f"{law}: {message}")
        self.law = law
