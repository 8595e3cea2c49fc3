"""What can be seen of a request agrees, whoever looks: its story, the metrics, and its own usage."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .stage import staged


async def test_the_story_the_metrics_and_the_usage_agree() -> None:
    """Two requests with one name each: the story is found by the name that the client gave, and counts the same."""
    async with (
        staged() as stage,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{stage.port}", timeout=None, trust_env=False) as client,
    ):
        stage.device.step(1000)
        usages = {}
        for name, prompt in (("mine", "hello\n"), ("other", "a longer one\n")):
            response = await client.post(
                "/v1/completions", json={"prompt": prompt, "max_tokens": 50}, headers={"x-request-id": name}
            )
            usages[name] = response.json()["usage"]
        stories = {name: (await client.get(f"/v1/requests/{name}")).json() for name in usages}
        listed = (await client.get("/v1/requests?state=ended")).json()["data"]
        page = (await client.get("/metrics")).text
    for name, usage in usages.items():
        story = stories[name]
        assert (story["prompt_tokens"], story["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert sum(event["tokens"] for event in story["events"] if event["event"] == "chunk") == usage["prompt_tokens"]
        assert (story["state"], story["finish_reason"]) == ("ended", "stop")
    assert [story["id"] for story in listed] == ["other", "mine"]
    found = {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}
    assert found["vllm:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages.values())
    assert found["vllm:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages.values())
    assert found["vllm:request_generation_tokens_sum"] == found["vllm:generation_tokens_total"]
    assert found["vllm:e2e_request_latency_seconds_count"] == 2
