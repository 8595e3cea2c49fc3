"""What serving costs beside the model: microseconds of CPU for each token, from the scheduler to the socket.

    python bench/serving.py [--streams 32 128] [--tokens 200] [--route chat]

The whole server, with the built-in model's tokenizer, and a device that computes nothing: a step is there after some
milliseconds of sleep. So the event loop is all that works, and its CPU time over the tokens is what a token costs:
scheduler, detokenizer, mailbox, HTTP task, JSON, write. With --step-ms 0 a token does not wait for the one before it to
be sent, and several share an event. The clients are a process of their own. Look inside with
`py-spy record --pid PID -- …` while it runs (--pause waits for a key first).
"""

import argparse
import gc
import json
import os
import random
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from triolet.api.config import ServerConfig
from triolet.api.serve import Run, serve
from triolet.engine.assembly import EngineParts
from triolet.engine.config import EngineConfig
from triolet.engine.core.ids import SequenceId, TokenId
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.engine.engine import EngineFacts
from triolet.engine.open import run_engine
from triolet.kvcache.manager import KVCacheManager
from triolet.model.source import resolve_source
from triolet.model.tokenizer import load_tokenizer

VOCAB_SIZE = 49_152


class EmptyDevice:
    """Answers a plan at once, with a token of words for every sequence that samples."""

    def __init__(self, step_s: float) -> None:
        self._left: dict[SequenceId, int] = {}  # sequence -> prompt tokens still to compute
        self._sent: deque[StepPlan] = deque()
        self._tokens = random.Random(0).choices(range(1000, 20_000), k=4096)
        self._step_s = step_s

    def send(self, plan: StepPlan) -> None:
        self._sent.append(plan)

    async def receive(self) -> StepResult:
        await trio.sleep(self._step_s)
        plan = self._sent.popleft()
        for sequence in plan.left:
            self._left.pop(sequence, None)
        for joined in plan.joined:
            self._left[joined.sequence] = len(joined.token_ids) - joined.num_computed
        chunks = dict(zip(plan.chunk_sequences, plan.chunk_lengths, strict=True))
        done = []
        for sequence, left in self._left.items():
            if left:
                left = self._left[sequence] = left - chunks.get(sequence, 1)
            if not left:
                done.append(sequence)
        tokens = tuple(TokenId(self._tokens[(plan.step + sequence) & 4095]) for sequence in done)
        return StepResult(step=plan.step, sequences=tuple(done), token_ids=tokens)

    async def restore(self) -> bool:
        raise AssertionError("nothing fails here")

    async def watch(self) -> None:
        await trio.sleep_forever()

    def give_up(self) -> None:
        pass


@asynccontextmanager
async def open_engine(step_s: float, config: EngineConfig, *, observer: Any, progress: Any) -> AsyncIterator[Any]:
    """An engine over the empty device."""
    cache = KVCacheManager(num_blocks=64 * 1024, block_size=16)
    parts = EngineParts(
        facts=EngineFacts(model_name="empty", max_model_len=8192, vocab_size=VOCAB_SIZE, max_num_seqs=512),
        tokenizer=load_tokenizer(resolve_source(None)),
        scheduler=Scheduler(SchedulerConfig(max_num_seqs=512, max_num_batched_tokens=16_384), cache),
        cache=cache,
        device=EmptyDevice(step_s),
        max_num_queued_reqs=1024,
    )
    async with run_engine(parts, observer=observer) as engine:
        yield engine


def request(route: str, port: int, number: int, num_tokens: int) -> bytes:
    body: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    if route == "chat":
        body["messages"] = [{"role": "user", "content": f"Count to {number}."}]
    else:
        body["prompt"] = [1000 + number] * 16
    path = "/v1/chat/completions" if route == "chat" else "/v1/completions"
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def load(route: str, port: int, num_streams: int, num_tokens: int) -> None:
    """The clients: read everything, then print how many events there were."""
    with selectors.DefaultSelector() as selector:
        for number in range(num_streams):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(request(route, port, number, num_tokens))
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        num_events = 0
        while selector.get_map():
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                num_events += data.count(b"data: {")
                if not data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    print(num_events)


async def measure(given: argparse.Namespace) -> None:
    async with trio.open_nursery() as nursery:
        start = partial(
            serve,
            EngineConfig(),
            ServerConfig(port=0, log_level="error"),
            open_engine=partial(open_engine, given.step_ms / 1e3),
            version="0",
            signals=False,
        )
        run: Run = await nursery.start(lambda task_status: start(task_status=task_status))
        if given.pause:
            await trio.to_thread.run_sync(input, f"pid {os.getpid()}: press Enter")
        gc.freeze()
        print(f"{'streams':>8}   µs for a token   tokens for an event   (best of {given.repeats})")
        for num_streams in given.streams:
            costs = []
            for _ in range(given.repeats):
                words = [sys.executable, __file__, "--load", given.route]
                words += map(str, (run.server.port, num_streams, given.tokens))
                start_s = time.process_time()
                ended = await trio.run_process(words, capture_stdout=True)
                spent = time.process_time() - start_s
                num_tokens = num_streams * given.tokens
                costs.append((spent / num_tokens * 1e6, num_tokens / max(1, int(ended.stdout))))
            cost, joined = min(costs)
            print(f"{num_streams:>8}   {cost:>14.1f}   {joined:>19.2f}", flush=True)
        run.stop.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--route", choices=("completions", "chat"), default="completions")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--pause", action="store_true")
    parser.add_argument("--load", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        load(given.load[0], *map(int, given.load[1:]))
    else:
        trio.run(measure, given)


if __name__ == "__main__":
    main()
