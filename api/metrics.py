"""Prometheus metrics: under vLLM's names what vLLM has too, and under our own (`triolet:`) what it has not.

An observer of the engine. A token costs one bisection, a step five, a request's end a dozen; nothing is kept per
request. All calls come from the one trio thread. The histograms are in histogram.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..engine.core.events import FinishReason
from ..engine.observer import AbortReason, Phase, RequestEnd, StepSeen
from .histogram import (
    CHOICES,
    FIRST_TOKEN_S,
    INTER_TOKEN_S,
    PREEMPTIONS,
    REQUEST_S,
    REQUEST_TOKENS,
    STEP_S,
    STEP_TOKENS,
    Histogram,
    SplitHistogram,
)

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.stats import EngineStats
    from ..engine.story import Story
    from .responses.registry import Responses

VLLM = "vllm:"
OWN = "triolet:"

_LABELS = ("model_name", "engine")
_PARTS = ("plan", "forward", "sample", "publish", "detokenize")

_GAUGES = (
    ("num_requests_running", "Requests in the batch.", "running"),
    ("num_requests_waiting", "Requests that wait to be admitted.", "waiting"),
    ("kv_cache_usage_perc", "The share of the KV cache that is in use, from 0 to 1.", "kv_usage"),
)
_OWN_GAUGES = (
    ("queued_tokens", "Prompt tokens of the requests that wait for their first admission.", "queued_tokens"),
    ("kv_blocks_free", "Blocks that could be had now, cached ones included.", "num_free_blocks"),
)
_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("num_preemptions", "Requests that had to give back their blocks while running.", "preemptions"),
    ("prompt_tokens", "Prompt tokens of admitted requests.", "prompt_tokens"),
    ("prompt_tokens_cached", "Prompt tokens that the prefix cache spared.", "cached_prompt_tokens"),
    ("generation_tokens", "Tokens generated.", "generation_tokens"),
)
_OWN_COUNTERS = (
    ("steps", "Steps planned.", "steps"),
    ("scheduled_tokens", "Tokens computed, of prompts and of answers.", "scheduled_tokens"),
    ("wasted_tokens", "Tokens computed for requests that had ended or lost their reader by then.", "wasted_tokens"),
    ("runner_restarts", "Runner processes that took the place of a lost one.", "runner_restarts"),
)


class Metrics(Collector):
    """The engine's observer, and the collector behind GET /metrics, in a registry of its own."""

    def __init__(self, prefix: str = VLLM) -> None:
        self._prefix = prefix
        self._engine: Engine | None = None
        self._responses: Responses | None = None
        self._labels = ["", "0"]
        self._first_token = Histogram("time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_S)
        self._inter_token = Histogram("inter_token_latency_seconds", "Between two tokens of a request.", INTER_TOKEN_S)
        self._per_token = Histogram(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", INTER_TOKEN_S
        )
        self._step_tokens = Histogram("iteration_tokens_total", "Tokens computed in a step.", STEP_TOKENS)
        self._num_choices = Histogram("request_params_n", "Answers that a request asked for.", CHOICES)
        self._num_preemptions = Histogram("request_num_preemptions", "How often a request was preempted.", PREEMPTIONS)
        self._seconds = {
            "e2e": Histogram("e2e_request_latency_seconds", "From arrival to the end.", REQUEST_S),
            "queue": Histogram("request_queue_time_seconds", "From arrival to admission.", REQUEST_S),
            "inference": Histogram("request_inference_time_seconds", "From admission to the last token.", REQUEST_S),
            "prefill": Histogram("request_prefill_time_seconds", "From admission to the first token.", REQUEST_S),
            "decode": Histogram("request_decode_time_seconds", "From the first token to the last.", REQUEST_S),
        }
        self._tokens = {
            "prompt": Histogram("request_prompt_tokens", "Tokens of a prompt.", REQUEST_TOKENS),
            "computed": Histogram(
                "request_prefill_kv_computed_tokens", "Tokens of a prompt that were computed.", REQUEST_TOKENS
            ),
            "output": Histogram("request_generation_tokens", "Tokens of all answers.", REQUEST_TOKENS),
            "longest": Histogram("request_max_num_generation_tokens", "Tokens of the longest answer.", REQUEST_TOKENS),
            "max": Histogram("request_params_max_tokens", "Tokens that an answer might have had.", REQUEST_TOKENS),
        }
        self._step_parts = SplitHistogram(
            "step_time_seconds", "Where the time of a step goes.", STEP_S, label="part", values=_PARTS
        )
        self._lag = Histogram("loop_lag_seconds", "How late the event loop wakes a task.", STEP_S)
        self._finished = dict.fromkeys(FinishReason, 0)
        self._aborts = {(reason, phase): 0 for reason in AbortReason for phase in Phase}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch(self, engine: "Engine", model_name: str, responses: "Responses | None" = None) -> None:
        """From now on read the numbers of this engine. Before that the page has the histograms only."""
        self._engine = engine
        self._responses = responses
        self._labels = [model_name, "0"]

    # The observer.

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def inter_token(self, seconds: float, count: int) -> None:
        """`count` tokens came together, `seconds` after the ones before: each took its share."""
        self._inter_token.observe(seconds / count if count > 1 else seconds, count)

    def finished(self, end: RequestEnd) -> None:
        self._finished[end.reason] += 1
        self._num_choices.observe(end.num_choices)
        self._num_preemptions.observe(end.num_preemptions)
        seconds = {
            "e2e": end.e2e_seconds,
            "queue": end.queue_seconds,
            "inference": end.inference_seconds,
            "prefill": end.prefill_seconds,
            "decode": end.decode_seconds,
        }
        for name, value in seconds.items():
            if value is not None:
                self._seconds[name].observe(value)
        if (per_token := end.seconds_per_output_token) is not None:
            self._per_token.observe(per_token)
        self._tokens["prompt"].observe(end.num_prompt_tokens)
        self._tokens["computed"].observe(end.num_prompt_tokens - end.num_cached_tokens)
        self._tokens["output"].observe(end.num_output_tokens)
        self._tokens["longest"].observe(end.longest_answer)
        if end.max_tokens is not None:
            self._tokens["max"].observe(end.max_tokens)

    def aborted(self, reason: AbortReason, phase: Phase) -> None:
        self._aborts[reason, phase] += 1

    def step(self, seen: StepSeen) -> None:
        self._step_tokens.observe(seen.num_tokens)
        parts = self._step_parts.parts
        parts["plan"].observe(seen.plan_seconds)
        parts["forward"].observe(seen.forward_seconds)
        parts["sample"].observe(seen.sample_seconds)
        parts["publish"].observe(seen.commit_seconds + seen.publish_seconds)

    def detokenized(self, seconds: float) -> None:
        self._step_parts.parts["detokenize"].observe(seconds)

    def ended(self, story: "Story") -> None:
        """`finished` and `aborted` say all that is counted."""

    def lagged(self, seconds: float) -> None:
        """The event loop woke a task so much later than it was to."""
        self._lag.observe(seconds)

    # The page.

    def render(self) -> tuple[bytes, str]:
        """The page and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterable[Metric]:
        longest = None
        if self._engine is not None:
            longest = self._engine.max_model_len
            yield from self._of_stats(self._engine.stats())
        if self._responses is not None:
            yield from self._of_responses(self._responses)
        prefix, labels = self._prefix, self._labels
        yield _counter(
            prefix + "request_success",
            "Requests that ended, by how.",
            (*_LABELS, "finished_reason"),
            [([*labels, str(reason)], count) for reason, count in self._finished.items()],
        )
        yield from self._of_aborts()
        for histogram in (self._first_token, self._inter_token, self._per_token, *self._seconds.values()):
            yield histogram.family(prefix, _LABELS, labels)
        for histogram in (self._step_tokens, self._num_choices, self._num_preemptions):
            yield histogram.family(prefix, _LABELS, labels)
        for histogram in self._tokens.values():
            yield histogram.family(prefix, _LABELS, labels, most=longest)
        yield self._step_parts.family(OWN, _LABELS, labels)
        yield self._lag.family(OWN, _LABELS, labels)

    def _of_stats(self, stats: "EngineStats") -> Iterator[Metric]:
        prefix, labels = self._prefix, self._labels
        for start, gauges in ((prefix, _GAUGES), (OWN, _OWN_GAUGES)):
            for name, help_, field in gauges:
                yield _gauge(start + name, help_, _LABELS, [(labels, getattr(stats, field))])
        for start, counters in ((prefix, _COUNTERS), (OWN, _OWN_COUNTERS)):
            for name, help_, field in counters:
                yield _counter(start + name, help_, _LABELS, [(labels, getattr(stats, field))])
        yield _gauge(
            prefix + "num_requests_waiting_by_reason",
            "Requests that wait, by why.",
            (*_LABELS, "reason"),
            [([*labels, "capacity"], stats.waiting), ([*labels, "deferred"], 0)],
        )
        yield _counter(
            prefix + "prompt_tokens_by_source",
            "Prompt tokens of admitted requests, by where their KV came from.",
            (*_LABELS, "source"),
            [
                ([*labels, "local_compute"], stats.prompt_tokens - stats.cached_prompt_tokens),
                ([*labels, "local_cache_hit"], stats.cached_prompt_tokens),
                ([*labels, "external_kv_transfer"], 0),
            ],
        )
        facts = {
            "block_size": stats.cache.block_size,
            "cache_dtype": stats.cache.dtype,
            "enable_prefix_caching": stats.cache.enable_prefix_caching,
            "gpu_memory_utilization": stats.cache.gpu_memory_utilization,
            "num_gpu_blocks": stats.cache.num_blocks,
            "bytes_per_block": stats.cache.bytes_per_block,
            "device": stats.cache.device,
        }
        names = (*_LABELS, *facts)
        yield _gauge(prefix + "cache_config_info", "The KV cache.", names, [([*labels, *map(str, facts.values())], 1)])

    def _of_responses(self, responses: "Responses") -> Iterator[Metric]:
        for name, help_, value in (
            ("responses_running", "Responses that have not ended, in the background or not.", responses.num_running),
            ("responses_stored", "Responses that can be read and continued.", responses.num_stored),
            ("responses_stored_bytes", "Memory that they take (--response-store-size).", responses.num_stored_bytes),
        ):
            yield _gauge(OWN + name, help_, _LABELS, [(self._labels, value)])

    def _of_aborts(self) -> Iterator[Metric]:
        labels = self._labels
        yield _counter(
            OWN + "request_aborts",
            "Requests that ended before their answer did, by why and in which state.",
            (*_LABELS, "reason", "state"),
            [([*labels, str(reason), str(phase)], count) for (reason, phase), count in self._aborts.items()],
        )
        for name, help_, why in (
            ("deadline_misses", "Requests that their deadline ended.", AbortReason.DEADLINE),
            ("supersedes", "Requests whose place a newer one took.", AbortReason.SUPERSEDED),
        ):
            count = sum(count for (reason, _), count in self._aborts.items() if reason is why)
            yield _counter(OWN + name, help_, _LABELS, [(labels, count)])


def _gauge(name: str, help_: str, names: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=names)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _counter(name: str, help_: str, names: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=names)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
