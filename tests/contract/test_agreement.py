"""One run under load, everything on: whatever is said of it, by the log, the metrics, the stories, the spans and the
clients' own usage, is the same."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.api.collector import Collector, collecting, facts
from triolet.api.log import Throughput

from .stage import Stage, staged, until

LINE = re.compile(
    r"Avg prompt throughput: (?P<prompt>\S+) tokens/s, Avg generation throughput: (?P<generation>\S+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs, Preemptions: (?P<preemptions>\d+), "
    r"CPU KV cache usage: (?P<usage>\S+)%, Prefix cache hit rate: (?P<hits>\S+)%"
)
INTERVAL_S = 0.001
"""Between two lines of the log, as they are told: so short that a rate of one digit names a whole token."""
NUM_REQUESTS = 14


@attrs.frozen
class Look:
    """All that can be read of the server at one moment."""

    metrics: dict[str, float]
    """By name, and the label that matters."""
    stories: list[dict[str, Any]]
    """Whole ones, the oldest first."""
    line: dict[str, float]
    num_blocks: int

    def told(self, field: str, chosen: Callable[[dict[str, Any]], bool] = lambda story: True) -> float:
        return sum(story[field] for story in self.stories if chosen(story))

    def in_state(self, *states: str) -> list[dict[str, Any]]:
        return [story for story in self.stories if story["state"] in states]


async def look(stage: Stage, client: httpx.AsyncClient, throughput: Throughput, now_s: float) -> Look:
    page = (await client.get("/metrics")).text
    names = [story["id"] for story in (await client.get("/v1/requests")).json()["data"]]
    stories = [(await client.get(f"/v1/requests/{name}")).json() for name in reversed(names)]
    line = throughput.line(stage.engine.stats(), now_s)
    assert line is not None
    found = LINE.fullmatch(line)
    assert found is not None
    metrics: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            own = [value for label, value in sample.labels.items() if label not in ("model_name", "engine")]
            metrics["/".join([sample.name.partition(":")[2], *own])] = sample.value
    figures = {name: float(text) for name, text in found.groupdict().items()}
    return Look(metrics, stories, figures, stage.engine.stats().num_blocks)


async def load(stage: Stage, client: httpx.AsyncClient, throughput: Throughput) -> tuple[Look, Look, dict[str, Any]]:
    """Requests that begin alike, in a memory too short for those that run; in the middle some leave, one is cancelled
    by name. A look in the middle, one at the end, and what the clients were told."""
    usages: dict[str, Any] = {}
    leaving: dict[int, trio.CancelScope] = {}

    async def ask(number: int) -> None:
        prompt = "the same beginning for all of us, " * (1 + number % 2) + f"{number}\n"
        body = {"prompt": prompt, "max_tokens": 60, "n": 2 if number == 3 else 1}
        with trio.CancelScope() as leaving[number]:
            response = await client.post("/v1/completions", json=body, headers={"x-request-id": f"r{number}"})
            usages[f"r{number}"] = response.json()["usage"]

    async with trio.open_nursery() as nursery:
        for number in range(NUM_REQUESTS):
            nursery.start_soon(ask, number)
            await until(lambda number=number: stage.num_open == number + 1)
        while not stage.engine.stats().preemptions or stage.engine.stats().running < 3:
            await stage.step()
        middle = await look(stage, client, throughput, INTERVAL_S)
        states = {
            state: [story["id"] for story in middle.in_state(state)] for state in ("decode", "preempted", "waiting")
        }
        *_, named, last = states["waiting"]
        num_open = stage.num_open
        for name in (states["decode"][0], states["preempted"][0], last):
            leaving[int(name[1:])].cancel()
        assert (await client.post(f"/v1/requests/{named}/cancel")).status_code == 200
        await until(lambda: stage.num_open <= num_open - 3)
        stage.device.step(float("inf"))
    await until(stage.engine_is_empty)
    return middle, await look(stage, client, throughput, 2 * INTERVAL_S), usages


@pytest.fixture(autouse=True)
def spans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is gathered before it is sent."""
    monkeypatch.setattr("triolet.api.spans.GATHER_S", 0.0)


async def test_log_metrics_stories_spans_and_usage_agree_under_load() -> None:
    """In the middle, with requests in every state, and at the end, when some have left and the others are answered."""
    async with (
        collecting() as collector,
        staged(num_blocks=60, max_num_batched_tokens=48, otlp_traces_endpoint=collector.url) as stage,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{stage.port}", timeout=None, trust_env=False) as client,
    ):
        throughput = Throughput(stage.engine.stats(), 0.0)
        middle, end, usages = await load(stage, client, throughput)
        await collector.wait_for(NUM_REQUESTS)
    check_moment(middle)
    check_moment(end)
    check_middle(middle)
    check_end(middle, end)
    check_usages(end, usages)
    check_spans(end, collector)


def check_moment(seen: Look) -> None:
    """What holds at any time between two steps."""
    metrics, line = seen.metrics, seen.line
    assert metrics["num_requests_running"] == line["running"]
    waiting = seen.in_state("tokenizing", "waiting", "preempted")
    assert metrics["num_requests_waiting"] == line["waiting"] == len(waiting)
    assert metrics["num_requests_waiting_by_reason/capacity"] == line["waiting"]
    never_admitted = seen.in_state("tokenizing", "waiting")
    assert metrics["queued_tokens"] == sum(story["prompt_tokens"] for story in never_admitted)
    assert metrics["num_preemptions_total"] == line["preemptions"] == seen.told("preemptions")
    assert round(100 * metrics["kv_cache_usage_perc"], 1) == line["usage"]
    assert 1 - metrics["kv_blocks_free"] / seen.num_blocks == pytest.approx(metrics["kv_cache_usage_perc"])
    admitted = [story for story in seen.stories if story["queue_seconds"] is not None]
    assert metrics["prompt_tokens_total"] == sum(story["prompt_tokens"] for story in admitted)
    assert metrics["prefix_cache_queries_total"] == metrics["prompt_tokens_total"]
    cached = sum(story["cached_tokens"] for story in admitted)
    assert metrics["prompt_tokens_cached_total"] == metrics["prefix_cache_hits_total"] == cached > 0
    assert metrics["prompt_tokens_by_source_total/local_cache_hit"] == cached
    assert metrics["time_to_first_token_seconds_count"] >= sum(
        story["time_to_first_token_seconds"] is not None for story in seen.stories
    )
    for name in ("iteration_tokens_total_count", "step_time_seconds_count/forward", "step_time_seconds_count/plan"):
        assert metrics[name] <= metrics["steps_total"] <= metrics[name] + 1  # one may be in flight
    for story in seen.stories:
        chunks = [event["tokens"] for event in story["events"] if event["event"] == "chunk"]
        assert len(chunks) == story["chunks"]
        preempted = [event for event in story["events"] if event["event"] == "preempted"]
        assert len(preempted) == story["preemptions"]


def check_middle(seen: Look) -> None:
    """There is something to see: each state, preemptions, cached prompts."""
    assert {"waiting", "decode", "preempted", "ended"} <= {story["state"] for story in seen.stories}
    assert seen.metrics["num_preemptions_total"] > 0
    assert seen.metrics["kv_cache_usage_perc"] > 0.5
    forked = [story for story in seen.in_state("decode") if story["n"] > 1]
    running = len(seen.in_state("prefill", "decode")) + sum(story["n"] - 1 for story in forked)
    assert seen.metrics["num_requests_running"] == running


def check_end(middle: Look, end: Look) -> None:
    """Every request has one end, which everybody counts under the same name."""
    metrics = end.metrics
    assert [story["state"] for story in end.stories] == ["ended"] * NUM_REQUESTS
    assert metrics["num_requests_running"] == metrics["kv_cache_usage_perc"] == 0
    reasons = Counter(story["finish_reason"] for story in end.stories)
    for reason in ("stop", "length", "abort", "timeout", "error"):
        assert metrics[f"request_success_total/{reason}"] == reasons[reason]
    aborted = Counter(story["abort_reason"] for story in end.stories if story["abort_reason"] is not None)
    assert aborted == {"left": 3, "cancelled": 1}
    for why in aborted:
        counts = [value for name, value in metrics.items() if name.startswith(f"request_aborts_total/{why}/")]
        assert sum(counts) == aborted[why]
    sums = {
        "request_prompt_tokens": "prompt_tokens",
        "request_generation_tokens": "output_tokens",
        "request_num_preemptions": "preemptions",
        "request_params_n": "n",
        "e2e_request_latency_seconds": "e2e_seconds",
    }
    for metric, field in sums.items():
        assert metrics[f"{metric}_count"] == NUM_REQUESTS
        assert metrics[f"{metric}_sum"] == pytest.approx(end.told(field)), metric
    assert metrics["iteration_tokens_total_sum"] == metrics["scheduled_tokens_total"]
    assert metrics["generation_tokens_total"] == end.told("output_tokens")
    assert metrics["wasted_tokens_total"] <= sum(aborted.values()) + metrics["num_preemptions_total"]
    chunks = sum(e["tokens"] for story in end.stories for e in story["events"] if e["event"] == "chunk")
    computed = metrics["prompt_tokens_total"] - metrics["prompt_tokens_cached_total"]
    assert computed <= chunks <= metrics["scheduled_tokens_total"]
    # Two lines, each of the time since the one before: together they have counted everything.
    lines = [middle.line, end.line]
    assert sum(line["prompt"] for line in lines) * INTERVAL_S == pytest.approx(computed)
    told = sum(line["generation"] for line in lines) * INTERVAL_S
    assert told == pytest.approx(metrics["generation_tokens_total"])
    later = metrics["prefix_cache_hits_total"] - middle.metrics["prefix_cache_hits_total"]
    queried = metrics["prefix_cache_queries_total"] - middle.metrics["prefix_cache_queries_total"]
    assert end.line["hits"] == round(100 * later / queried, 1)


def check_usages(end: Look, usages: dict[str, Any]) -> None:
    """What a client was told of its answer is in its story."""
    stories = {story["id"]: story for story in end.stories}
    assert len(usages) == NUM_REQUESTS - 3
    for name, usage in usages.items():
        story = stories[name]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (story["prompt_tokens"], story["output_tokens"])


def check_spans(end: Look, collector: Collector) -> None:
    """A span for each story, with its numbers."""
    spans = {said["gen_ai.request.id"]: said for said in map(facts, collector.roots())}
    assert spans.keys() == {story["id"] for story in end.stories}
    for story in end.stories:
        said = spans[story["id"]]
        assert said["gen_ai.usage.input_tokens"] == story["prompt_tokens"]
        assert said["gen_ai.usage.output_tokens"] == story["output_tokens"]
        assert said["gen_ai.response.finish_reasons"] == [story["finish_reason"]]
        assert said["triolet.preemptions"] == story["preemptions"]
        assert said["gen_ai.latency.e2e"] == pytest.approx(story["e2e_seconds"])
        assert said.get("gen_ai.latency.time_in_queue") == pytest.approx(story["queue_seconds"])
