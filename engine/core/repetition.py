"""Finds out that an answer goes round in circles: the same tokens again and again at its end."""

import attrs

from .errors import InvalidRequest
from .ids import TokenId

MAX_PATTERN_SIZE = 1024
"""Each token of an answer is compared with as many before it."""


def _refuse(what: str) -> InvalidRequest:
    return InvalidRequest(f"repetition_detection: {what}.", param="repetition_detection")


@attrs.frozen(kw_only=True)
class RepetitionDetection:
    """When to end an answer that repeats itself. A value out of range raises `InvalidRequest`."""

    max_pattern_size: int
    """Longest pattern that is looked for, in tokens."""
    min_pattern_size: int = 1
    min_count: int = 2
    """A pattern that stands so often behind itself at the end of the answer ends it."""

    def __attrs_post_init__(self) -> None:
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int):
                raise _refuse(f"{name} must be an integer, not {value!r}")
        if not 1 <= self.max_pattern_size <= MAX_PATTERN_SIZE:
            raise _refuse(f"max_pattern_size must be from 1 to {MAX_PATTERN_SIZE}, not {self.max_pattern_size}")
        if not 1 <= self.min_pattern_size <= self.max_pattern_size:
            raise _refuse(f"min_pattern_size must be from 1 to max_pattern_size, not {self.min_pattern_size}")
        if self.min_count < 2:
            raise _refuse(f"min_count must be at least 2, not {self.min_count}")


class RepetitionDetector:
    """Told an answer's tokens one by one. A token costs `max_pattern_size` comparisons, however long the answer."""

    __slots__ = ("_params", "_runs")

    def __init__(self, params: RepetitionDetection) -> None:
        self._params = params
        self._runs = [0] * (params.max_pattern_size - params.min_pattern_size + 1)
        """For each pattern size: how many of the last tokens equal the one that far before them."""

    def push(self, tokens: list[TokenId], start: int) -> bool:
        """`tokens[start:]` is the answer, one token longer than the last time. True: it repeats itself."""
        least, count = self._params.min_pattern_size, self._params.min_count
        last, runs = tokens[-1], self._runs
        known = min(len(runs), len(tokens) - start - least)
        for index in range(known):
            size = least + index
            if tokens[-1 - size] != last:
                runs[index] = 0
                continue
            runs[index] += 1
            if runs[index] >= size * (count - 1):
                return True
        return False
