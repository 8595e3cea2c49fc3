"""Prometheus metrics, under vLLM's names: what the engine counts, and the latencies that it lets us observe.

The histograms are columns of our own, because a step observes a value for every stream: an observation is one bisection
(about 0.3 µs), and the exposition is left to prometheus-client. All calls come from the one trio thread.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..engine.core.events import FinishReason

if TYPE_CHECKING:
    from ..engine.engine import Engine

# fmt: off
FIRST_TOKEN_S = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
INTER_TOKEN_S = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_S = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
# fmt: on

_LABELS = ("model_name", "engine")

_GAUGES = (
    ("vllm:num_requests_running", "Requests in the batch.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait to be admitted.", "waiting"),
    ("vllm:kv_cache_usage_perc", "The share of the KV cache that is in use, from 0 to 1.", "kv_usage"),
)
_COUNTERS = (
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("vllm:num_preemptions", "Requests that had to give back their blocks while running.", "preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens of admitted requests.", "prompt_tokens"),
    ("vllm:prompt_tokens_cached", "Prompt tokens that the prefix cache spared.", "cached_prompt_tokens"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, name: str, help_: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.help = help_
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` times `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, labels: list[str]) -> HistogramMetricFamily:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = [(name, float(total)) for name, total in zip(names, accumulate(self._counts), strict=True)]
        family = HistogramMetricFamily(self.name, self.help, labels=_LABELS)
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)
        return family


class Metrics(Collector):
    """The engine's observer, and the collector behind GET /metrics, in a registry of its own."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._labels = ["", "0"]
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_S
        )
        self._inter_token = Histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a request.", INTER_TOKEN_S
        )
        self._e2e = Histogram("vllm:e2e_request_latency_seconds", "From arrival to the end of a request.", REQUEST_S)
        self._queue = Histogram("vllm:request_queue_time_seconds", "From arrival to admission.", REQUEST_S)
        self._finished = dict.fromkeys(FinishReason, 0)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch(self, engine: "Engine", model_name: str) -> None:
        """From now on read the numbers of this engine. Before that the page has the histograms only."""
        self._engine = engine
        self._labels = [model_name, "0"]

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def inter_token(self, seconds: float, count: int) -> None:
        """`count` tokens came together, `seconds` after the ones before: each took its share."""
        self._inter_token.observe(seconds / count if count > 1 else seconds, count)

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
        self._finished[reason] += 1
        self._e2e.observe(e2e_seconds)
        self._queue.observe(queue_seconds)

    def render(self) -> tuple[bytes, str]:
        """The page and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterable[Metric]:
        if self._engine is not None:
            stats = self._engine.stats()
            for name, help_, field in _GAUGES:
                gauge = GaugeMetricFamily(name, help_, labels=_LABELS)
                gauge.add_metric(self._labels, getattr(stats, field))
                yield gauge
            for name, help_, field in _COUNTERS:
                counter = CounterMetricFamily(name, help_, labels=_LABELS)
                counter.add_metric(self._labels, getattr(stats, field))
                yield counter
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended, by how.", labels=(*_LABELS, "finished_reason")
        )
        for reason, count in self._finished.items():
            ended.add_metric([*self._labels, str(reason)], count)
        yield ended
        for histogram in (self._first_token, self._inter_token, self._e2e, self._queue):
            yield histogram.family(self._labels)
