"""How many threads a step gets: chosen by the size of the batch and by what steps of that size have taken.

Pure. All cores are the first choice. Where a foreign thread runs on one of them, a small step is quicker on fewer: its
phases wait for whoever has been descheduled in the middle of a chunk. So now and then a step tries another number, and
the choice changes when that was clearly quicker. A large step always gets all: beside a foreign thread fewer are no
quicker there, and a try would let every stream stand still for as long again.
"""

import attrs

PROBE_AFTER = 16
"""Steps until another number of threads is tried …"""
PROBE_AFTER_MAX = 512
"""… and the most, as it grows while the choice stays right."""
LARGE = 256
"""From so many tokens on a step gets all threads."""
CLEARLY = 0.85
"""The share of the present time that another number must stay below to be chosen."""
MEMORY = 0.25
"""The weight of the latest step in a running mean."""


@attrs.define(kw_only=True)
class _Bucket:
    """Steps of about one size."""

    chosen: int
    mean_s: dict[int, float] = attrs.field(factory=dict)
    """Seconds per token and number of threads."""
    until_probe: int = PROBE_AFTER
    patience: int = PROBE_AFTER


class ThreadChooser:
    """`choose` before a step, `record` after it."""

    def __init__(self, most: int) -> None:
        """`most`: the cores that there are."""
        self.most = max(1, most)
        self._options = sorted({1, (self.most + 1) // 2, self.most})
        self._buckets: dict[int, _Bucket] = {}

    def choose(self, num_tokens: int) -> int:
        """Threads for a step of so many tokens."""
        if num_tokens >= LARGE:
            return self.most
        bucket = self._bucket(num_tokens)
        if bucket.until_probe > 0 or len(self._options) == 1:
            return bucket.chosen
        others = [option for option in self._options if option != bucket.chosen]
        return others[bucket.patience // PROBE_AFTER % len(others)]

    def record(self, num_tokens: int, threads: int, seconds: float) -> None:
        """What the step took."""
        if num_tokens >= LARGE:
            return
        bucket, spent = self._bucket(num_tokens), seconds / num_tokens
        if threads == bucket.chosen:
            mean = bucket.mean_s.get(threads, spent)
            # One stalled step is no trend: it counts as twice the mean at most.
            bucket.mean_s[threads] = mean + MEMORY * (min(spent, 2 * mean) - mean)
            bucket.until_probe -= 1
            return
        present = bucket.mean_s.get(bucket.chosen, spent)
        if spent < CLEARLY * present:
            bucket.chosen, bucket.patience = threads, PROBE_AFTER
            bucket.mean_s = {threads: spent}
        else:
            bucket.patience = min(2 * bucket.patience, PROBE_AFTER_MAX)
        bucket.until_probe = bucket.patience

    def _bucket(self, num_tokens: int) -> _Bucket:
        return self._buckets.setdefault(num_tokens.bit_length(), _Bucket(chosen=self.most))
