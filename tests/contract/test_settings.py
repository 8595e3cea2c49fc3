"""Settings that change under a load, over a real socket: whoever is answered meanwhile notices nothing but its pace."""

from collections import Counter

import httpx
import trio

from .stage import staged, until


async def test_slots_and_policy_change_under_streams() -> None:
    """Four run and two wait; with two slots two of the four wait again, the worst by the new policy, and say all
    that they would have said. The answer to the change comes at the step boundary."""
    answers: dict[str, str] = {}
    told: list[httpx.Response] = []
    async with (
        staged(max_num_seqs=4, max_num_batched_tokens=64) as stage,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{stage.port}", timeout=None, trust_env=False) as client,
    ):

        async def ask(number: int) -> None:
            body = {"prompt": f"hello to number {number}\n", "max_tokens": 60, "priority": -number}
            response = await client.post("/v1/completions", json=body, headers={"x-request-id": f"r{number}"})
            answers[f"r{number}"] = response.json()["choices"][0]["text"]

        async def change() -> None:
            body = {"max_num_seqs": 2, "scheduling_policy": "priority"}
            told.append(await client.patch("/admin/settings", json=body))

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(ask, number)
                await until(lambda number=number: stage.num_open == number + 1)
            await stage.step(4)
            assert stage.engine.stats().running == 4
            nursery.start_soon(change)
            await until(lambda: stage.device.waits)
            assert not told, "the step in flight has not landed"
            await stage.step()
            await until(lambda: told)
            assert told[0].json()["max_num_seqs"] == stage.engine.stats().running == 2
            stage.device.step(float("inf"))
        stories = {name: (await client.get(f"/v1/requests/{name}")).json() for name in answers}
        metrics = (await client.get("/metrics")).text
    assert answers == {f"r{number}": f"hello to number {number}" for number in range(6)}
    preempted = Counter(
        (name, event["reason"])
        for name, story in stories.items()
        for event in story["events"]
        if event["event"] == "preempted" and event["reason"] == "limit"
    )
    assert preempted == {("r0", "limit"): 1, ("r1", "limit"): 1}, "by priority the first that came are the worst"
    total = sum(story["preemptions"] for story in stories.values())
    assert f'vllm:num_preemptions_total{{engine="0",model_name="echo"}} {total:.1f}' in metrics
