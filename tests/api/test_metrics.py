"""GET /metrics: vLLM's names, with the engine's numbers behind them."""

from prometheus_client.parser import text_string_to_metric_families

from triolet.api.metrics import FIRST_TOKEN_S, INTER_TOKEN_S, REQUEST_S, Metrics
from triolet.engine.core.events import FinishReason

from .fake_engine import FakeEngine
from .rig import serving

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


def test_what_the_observer_hears_is_in_the_histograms() -> None:
    """Counts, sums and buckets; several tokens that came together share their time."""
    metrics = Metrics()
    metrics.first_token(0.03)
    metrics.inter_token(0.02, 1)
    metrics.inter_token(0.4, 4)
    metrics.finished(
        FinishReason.LENGTH,
        e2e_seconds=9.0,
        queue_seconds=0.1,
        num_prompt_tokens=5,
        num_cached_tokens=0,
        num_output_tokens=6,
    )
    found = {
        (name, dict(labels).get("le") or dict(labels).get("finished_reason")): value
        for (name, labels), value in samples(metrics.render()[0].decode()).items()
    }
    assert found["vllm:time_to_first_token_seconds_bucket", "0.02"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket", "0.04"] == 1
    assert found["vllm:inter_token_latency_seconds_count", None] == 5
    assert found["vllm:inter_token_latency_seconds_bucket", "0.025"] == 1
    assert found["vllm:inter_token_latency_seconds_bucket", "0.1"] == 5
    assert abs(found["vllm:inter_token_latency_seconds_sum", None] - 0.42) < 1e-9
    assert found["vllm:e2e_request_latency_seconds_bucket", "10.0"] == 1
    assert found["vllm:e2e_request_latency_seconds_bucket", "+Inf"] == 1
    assert found["vllm:request_queue_time_seconds_count", None] == 1
    assert found["vllm:request_success_total", "length"] == 1


def test_the_buckets_are_the_listed_ones() -> None:
    """Dashboards made for vLLM fit."""
    assert (len(FIRST_TOKEN_S), FIRST_TOKEN_S[0], FIRST_TOKEN_S[-1]) == (22, 0.001, 2560)
    assert (len(INTER_TOKEN_S), INTER_TOKEN_S[0], INTER_TOKEN_S[-1]) == (19, 0.01, 80)
    assert (len(REQUEST_S), REQUEST_S[0], REQUEST_S[-1]) == (21, 0.3, 7680)
    for bounds in (FIRST_TOKEN_S, INTER_TOKEN_S, REQUEST_S):
        assert list(bounds) == sorted(set(bounds))
