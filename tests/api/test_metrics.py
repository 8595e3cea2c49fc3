"""GET /metrics: vLLM's names, with the engine's numbers behind them."""

import json
import re
from pathlib import Path

import pytest
import trio
import trio.testing
import yaml
from prometheus_client.parser import text_string_to_metric_families

from triolet.api.config import ServerConfig
from triolet.api.histogram import (
    CHOICES,
    FIRST_TOKEN_S,
    INTER_TOKEN_S,
    PREEMPTIONS,
    REQUEST_S,
    REQUEST_TOKENS,
    STEP_S,
    STEP_TOKENS,
)
from triolet.api.lag import watch_lag
from triolet.api.metrics import Metrics
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.events import FinishReason
from triolet.engine.observer import AbortReason, Phase, RequestEnd, StepSeen

from .fake_engine import FakeEngine
from .rig import serving

DOCS = Path(__file__).parents[2] / "docs"
LABELS = {"model_name": "fake", "engine": "0"}


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_the_page_has_the_engines_numbers_under_vllms_names() -> None:
    """Gauges and counters with the labels model_name and engine."""
    engine = FakeEngine()
    engine.counters = {"prompt_tokens": 100, "generation_tokens": 50}
    async with serving(engine) as rig:
        response = await rig.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    found = samples(response.text)
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 80,
        "vllm:prefix_cache_hits_total": 20,
        "vllm:num_preemptions_total": 2,
        "vllm:prompt_tokens_total": 100,
        "vllm:prompt_tokens_cached_total": 20,
        "vllm:generation_tokens_total": 50,
        "vllm:time_to_first_token_seconds_count": 0,
        "vllm:inter_token_latency_seconds_count": 0,
        "vllm:e2e_request_latency_seconds_count": 0,
    }
    for name, value in expected.items():
        assert found[name, tuple(sorted(LABELS.items()))] == value, name
    reasons = {dict(labels)["finished_reason"] for name, labels in found if name == "vllm:request_success_total"}
    assert reasons == {"stop", "length", "repetition", "abort", "timeout", "error"}


def values_of(metrics: Metrics) -> dict[tuple[str, str | None], float]:
    """Every sample by its name and the one label that matters."""
    found = {}
    for (name, labels), value in samples(metrics.render()[0].decode()).items():
        own = [text for label, text in labels if label not in LABELS]
        found[name, "/".join(own) or None] = value
    return found


def test_what_the_observer_hears_is_in_the_histograms() -> None:
    """Counts, sums and buckets; several tokens that came together share their time."""
    metrics = Metrics()
    metrics.first_token(0.03)
    metrics.inter_token(0.02, 1)
    metrics.inter_token(0.4, 4)
    metrics.finished(
        RequestEnd(
            name="mine",
            reason=FinishReason.LENGTH,
            arrival_time=1.0,
            admitted_time=1.1,
            first_token_time=2.0,
            last_token_time=9.5,
            end_time=10.0,
            num_prompt_tokens=50,
            num_cached_tokens=32,
            num_output_tokens=12,
            longest_answer=6,
            num_choices=2,
            max_tokens=6,
            num_preemptions=1,
        )
    )
    found = values_of(metrics)
    assert found["vllm:time_to_first_token_seconds_bucket", "0.02"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket", "0.04"] == 1
    assert found["vllm:inter_token_latency_seconds_count", None] == 5
    assert found["vllm:inter_token_latency_seconds_bucket", "0.025"] == 1
    assert found["vllm:inter_token_latency_seconds_bucket", "0.1"] == 5
    assert abs(found["vllm:inter_token_latency_seconds_sum", None] - 0.42) < 1e-9
    assert found["vllm:e2e_request_latency_seconds_bucket", "10.0"] == 1
    assert found["vllm:e2e_request_latency_seconds_bucket", "+Inf"] == 1
    assert found["vllm:request_success_total", "length"] == 1
    sums = {
        "request_queue_time_seconds": 0.1,
        "request_prefill_time_seconds": 0.9,
        "request_decode_time_seconds": 7.5,
        "request_inference_time_seconds": 8.4,
        "request_time_per_output_token_seconds": 1.5,
        "request_prompt_tokens": 50,
        "request_prefill_kv_computed_tokens": 18,
        "request_generation_tokens": 12,
        "request_max_num_generation_tokens": 6,
        "request_params_n": 2,
        "request_params_max_tokens": 6,
        "request_num_preemptions": 1,
    }
    for name, value in sums.items():
        assert abs(found[f"vllm:{name}_sum", None] - value) < 1e-9, name
        assert found[f"vllm:{name}_count", None] == 1, name


def test_a_step_is_split_into_its_parts() -> None:
    """Planning, the forward pass, sampling and publishing of each step, and detokenizing beside it; its tokens."""
    metrics = Metrics()
    metrics.step(
        StepSeen(
            step=1,
            num_tokens=40,
            num_sequences=3,
            num_prefill_tokens=38,
            begun=1.0,
            landed=1.5,
            plan_seconds=0.002,
            device_seconds=0.5,
            sample_seconds=0.1,
            commit_seconds=0.001,
            said=0.0,
            publish_seconds=0.003,
        )
    )
    metrics.detokenized(0.008)
    metrics.lagged(0.05)
    found = values_of(metrics)
    for part, seconds in {
        "plan": 0.002,
        "forward": 0.4,
        "sample": 0.1,
        "publish": 0.004,
        "detokenize": 0.008,
    }.items():
        assert abs(found["triolet:step_time_seconds_sum", part] - seconds) < 1e-9, part
    assert found["vllm:iteration_tokens_total_bucket", "32.0"] == 0
    assert found["vllm:iteration_tokens_total_bucket", "64.0"] == 1
    assert found["triolet:loop_lag_seconds_bucket", "0.1"] == 1


def test_aborts_are_counted_by_reason_and_state() -> None:
    """Every pair is there from the start; deadlines and supersedes have counters of their own."""
    metrics = Metrics()
    metrics.aborted(AbortReason.DEADLINE, Phase.DECODE)
    metrics.aborted(AbortReason.DEADLINE, Phase.WAITING)
    metrics.aborted(AbortReason.SUPERSEDED, Phase.TOKENIZING)
    found = values_of(metrics)
    assert found["triolet:request_aborts_total", "deadline/decode"] == 1
    assert found["triolet:request_aborts_total", "left/prefill"] == 0
    assert found["triolet:deadline_misses_total", None] == 2
    assert found["triolet:supersedes_total", None] == 1


def test_the_prefix_is_for_names_that_vllm_has() -> None:
    """Another one, or none; our own names keep theirs, and what is no name is refused."""
    for prefix in ("llm_", ""):
        names = {
            name
            for name, _ in samples(Metrics(ServerConfig(metrics_prefix=prefix).metrics_prefix).render()[0].decode())
        }
        assert f"{prefix}request_success_total" in names
        assert "triolet:deadline_misses_total" in names
        assert not any(name.startswith("vllm:") for name in names)
    with pytest.raises(ConfigurationError, match=r"^--metrics-prefix takes letters, digits, `_` and `:`, not '1-'\.$"):
        ServerConfig(metrics_prefix="1-")


async def test_every_family_is_told_once_with_help_and_type() -> None:
    """The page is what Prometheus reads: no family twice, none without its two lines, every name well-formed."""
    async with serving() as rig:
        page = (await rig.client.get("/metrics")).text
    families = list(text_string_to_metric_families(page))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(family.documentation and family.type in ("gauge", "counter", "histogram") for family in families)
    assert page.count("# HELP") == page.count("# TYPE") == len(names)
    (info,) = (family for family in families if family.name == "vllm:cache_config_info")
    assert info.samples[0].value == 1
    assert info.samples[0].labels.keys() > {"block_size", "cache_dtype", "num_gpu_blocks", "enable_prefix_caching"}


async def test_the_histograms_of_lengths_end_with_the_longest_request() -> None:
    """1, 2, 5, 10, … up to the model's length, as vLLM has them."""
    async with serving(FakeEngine(max_model_len=600)) as rig:
        page = (await rig.client.get("/metrics")).text
    bounds = [dict(labels)["le"] for name, labels in samples(page) if name == "vllm:request_prompt_tokens_bucket"]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "+Inf"]


def test_the_dashboard_and_the_alerts_name_what_the_page_has() -> None:
    """docs/grafana.json and docs/alerts.yml are about metrics that exist, and every panel and alert says what it is."""
    metrics = Metrics()
    metrics.watch(FakeEngine(), "fake")  # type: ignore[arg-type]
    known = {name for name, _ in samples(metrics.render()[0].decode())}
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    rules = [rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    expressions += [rule["expr"] for rule in rules]
    named = {name for expression in expressions for name in re.findall(r"(?:vllm|triolet):\w+", expression)}
    assert named <= known
    assert len(named) >= 15
    assert all(panel["title"] for panel in panels)
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)


async def test_the_loop_s_lag_is_measured(mock_clock: trio.testing.MockClock) -> None:
    """A loop that is woken when it should be is not late; one that is held up is, by as much."""
    lags: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_lag, lags.append, 0.25)
        for seconds in (0.25, 1.25):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert lags == [0.0, 1.0]


def test_the_buckets_are_the_listed_ones() -> None:
    """Dashboards made for vLLM fit."""
    for bounds, listed in (
        (FIRST_TOKEN_S, ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"),
        (INTER_TOKEN_S, ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"),
        (REQUEST_S, ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"),
    ):
        assert list(bounds) == [float(bound) for bound in listed.split()]
    assert STEP_TOKENS == (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    assert (CHOICES, PREEMPTIONS) == ((1, 2, 5, 10, 20), (1, 2, 3, 4, 5, 10, 20))
    for bounds in (FIRST_TOKEN_S, INTER_TOKEN_S, REQUEST_S, REQUEST_TOKENS, STEP_S):
        assert list(bounds) == sorted(set(bounds))
