"""More than the server can do: who is refused is refused early, who is accepted is served, and memory stays."""

import gc
import tracemalloc

import pytest
import trio

from .clients import PROTOCOLS, connect
from .stage import Stage, staged, until
from .states import CHAT, body, choices_of

both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)

NUM_CONNECTIONS = 250
BURST = 5000
QUEUE = 100


@both_protocols
async def test_a_full_queue_refuses_before_it_tokenizes(protocol: str) -> None:
    """503 with Retry-After, and the end of its connection; the ones in the queue are served."""
    async with staged(max_num_seqs=1, max_num_queued_reqs=2) as stage:
        clients = [await connect(protocol, stage.port) for _ in range(3)]
        await clients[0].ask(CHAT, body("hello"))
        await until(lambda: stage.device.waits)
        for client in clients[1:]:
            await client.ask(CHAT, body("hello"))
        await until(lambda: stage.engine.stats().waiting == 2)
        for streamed in (False, True):
            refused = await connect(protocol, stage.port)
            answer = await refused.answer(CHAT, body("hello", stream=streamed))
            assert (refused.status, answer["error"]["code"]) == (503, "overloaded")
            assert answer["error"]["message"] == "The queue is full: 2 requests are waiting."
            assert int(refused.headers["retry-after"]) >= 1
            await refused.close()
        assert stage.tokenizer.num_encoded == 3
        stage.device.step(1000)
        for client in clients:
            assert choices_of(await client.read(), streamed=False)[0].text == "hello"
        again = await connect(protocol, stage.port)
        await again.answer(CHAT, body("hello"))
        assert again.status == 200
        for client in (*clients, again):
            await client.close()
        await stage.wait_all_gone()


@both_protocols
async def test_a_queue_full_of_prompt_tokens_refuses_the_next(protocol: str) -> None:
    """Many short prompts may wait, or one long one: what counts is told before it is tokenized."""
    async with staged(max_num_seqs=1, max_num_queued_tokens=40) as stage:
        clients = [await connect(protocol, stage.port) for _ in range(3)]
        await clients[0].ask(CHAT, body("hello"))
        await until(lambda: stage.device.waits)
        for client in clients[1:]:
            await client.ask(CHAT, body("h" * 16))
        await until(lambda: stage.engine.stats().waiting == 2)
        refused = await connect(protocol, stage.port)
        answer = await refused.answer(CHAT, body("h" * 200))
        assert (refused.status, answer["error"]["code"]) == (503, "overloaded")
        assert "prompt tokens are waiting" in answer["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert stage.tokenizer.num_encoded == 3
        stage.device.step(1000)
        for client in clients:
            assert choices_of(await client.read(), streamed=False)
        for client in (*clients, refused):
            await client.close()
        await stage.wait_all_gone()


async def _ask_again_and_again(stage: Stage, statuses: list[int], share: int) -> None:
    for _ in range(share):
        client = await connect("http/1.1", stage.port)
        answer = await client.answer(CHAT, body("hello"))
        statuses.append(client.status)
        if client.status == 200:
            assert answer["choices"][0]["message"]["content"] == "hello"
        else:
            assert int(client.headers["retry-after"]) >= 1
        assert stage.engine.stats().waiting <= QUEUE
        await client.close()


async def test_a_burst_loses_nothing_that_was_accepted() -> None:
    """5,000 requests at a queue of 100: each has its answer or its refusal, none is tokenized in vain, and the server
    keeps nothing of them."""
    async with staged(max_num_seqs=4, max_num_queued_reqs=QUEUE, check=False) as stage:
        statuses: list[int] = []
        share = BURST // NUM_CONNECTIONS
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_CONNECTIONS):
                nursery.start_soon(_ask_again_and_again, stage, statuses, share)
            # The device stands still until all those without a place have been refused for good.
            # They come no faster than the door lets them in.
            await until(lambda: len(nursery.child_tasks) == stage.tokenizer.num_encoded, rounds=20 * BURST)
            assert set(statuses) == {503}
            stats = stage.engine.stats()
            assert (stats.waiting, stats.running) == (QUEUE, stage.tokenizer.num_encoded - QUEUE)
            gc.collect()
            num_objects = len(gc.get_objects())
            stage.device.step(float("inf"))
        assert len(statuses) == BURST
        assert set(statuses) == {200, 503}
        assert stage.tokenizer.num_encoded == statuses.count(200) >= QUEUE + 4
        gc.collect()
        assert len(gc.get_objects()) <= num_objects, "nothing grows with the number of requests"
        await stage.wait_all_gone()


@both_protocols
async def test_a_long_answer_to_a_slow_reader_costs_what_is_in_its_buffers(protocol: str) -> None:
    """What the server holds for a client that does not read is one delta, however much comes; others are served."""
    async with staged(max_model_len=2048, num_blocks=2048) as stage:
        stage.tokenizer.loud = True
        slow = await connect(protocol, stage.port, stalled=True)
        await slow.ask(CHAT, body("a" * 8, stream=True))
        await until(lambda: stage.device.waits)
        while not stage.run.server.num_blocked_writes:
            await stage.step()
        tracemalloc.start()
        try:
            quick = await connect(protocol, stage.port)
            stage.tokenizer.loud = False
            await quick.ask(CHAT, body("hello"))
            stage.device.step(1000)
            assert choices_of(await quick.read(), streamed=False)[0].text == "hello"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * 200_000 * 2
        await slow.leave("reset")
        await quick.close()
        await stage.wait_all_gone()
