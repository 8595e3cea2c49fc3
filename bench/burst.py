"""What a burst of requests far over the queue's bound does to the streams that are running.

    triolet serve --port 8000 --max-num-seqs 8 --max-num-queued-reqs 100
    python bench/burst.py --port 8000

Eight streams take every slot of the server. For some seconds they run undisturbed; then 5,000 requests come, 300
connections at a time, of which 100 wait and the others get 503; then they run undisturbed again. Prints the time
between two events of a stream in each phase, how many requests were refused, and how the server's memory grew (on the
same machine, with --pid; the KV cache of the eight streams, which fills meanwhile, is in it).

A step takes longer as the streams grow, so the ratio (goal: at most 1.2) is that of the burst to the mean of the phases
before and after it.

The burst comes from a process of its own, so that the clock that times the streams is not held up by it. It shares the
machine's cores with the server all the same: --nice 19 leaves the server what another machine's clients would leave it.
"""

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from pathlib import Path

import trio

NUM_STREAMS = 8
NUM_REQUESTS = 5000
NUM_CONNECTIONS = 300
QUIET_S = 6.0


def post(body: dict[str, object]) -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    )
    return head.encode() + b"\r\n\r\n" + payload


async def connect(port: int) -> trio.SocketStream:
    socket = trio.socket.socket()
    await socket.connect(("127.0.0.1", port))
    return trio.SocketStream(socket)


class Burst:
    """5,000 requests, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.statuses: Counter[str] = Counter()

    async def run(self) -> Counter[str]:
        """What became of them. Those that wait in the queue are broken off at the end."""
        send, receive = trio.open_memory_channel[int](0)
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_CONNECTIONS):
                nursery.start_soon(self._ask, receive)
            async with send:
                for number in range(NUM_REQUESTS):
                    await send.send(number)
            nursery.cancel_scope.deadline = trio.current_time() + 1
        self.statuses["waiting"] = NUM_REQUESTS - self.statuses.total()
        return self.statuses

    async def _ask(self, requests: "trio.MemoryReceiveChannel[int]") -> None:
        """One request after the other; one that was accepted is waited for until the end."""
        request = post({"prompt": "The sea", "max_tokens": 5})
        async for _ in requests:
            async with await connect(self.port) as stream:
                await stream.send_all(request)
                answer = await stream.receive_some(4096)
                self.statuses[answer[9:12].decode()] += 1


class Streams:
    """The streams that run, and the gaps between their events."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.gaps: list[float] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_STREAMS):
                nursery.start_soon(self._read)

    async def _read(self) -> None:
        async with await connect(self.port) as stream:
            await stream.send_all(post({"prompt": "The sea", "max_tokens": 8000, "ignore_eos": True, "stream": True}))
            last = None
            while data := await stream.receive_some(65536):
                now = trio.current_time()
                if b"data: " in data:
                    if last is not None:
                        self.gaps.append(now - last)
                    last = now

    def take(self) -> list[float]:
        """The gaps since the last call."""
        gaps, self.gaps = self.gaps, []
        return gaps


async def measure(port: int, nice: int) -> None:
    streams = Streams(port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams.run)
        await trio.sleep(QUIET_S / 3)
        streams.take()
        await trio.sleep(QUIET_S)
        before = streams.take()
        began = trio.current_time()
        command = [sys.executable, __file__, "--port", str(port), "--nice", str(nice), "--only-burst"]
        burst = await trio.run_process(command, capture_stdout=True)
        seconds = trio.current_time() - began
        during = streams.take()
        await trio.sleep(1)
        streams.take()
        await trio.sleep(QUIET_S)
        after = streams.take()
        nursery.cancel_scope.cancel()
    for name, gaps in (("before", before), ("during the burst", during), ("after", after)):
        cuts = statistics.quantiles(gaps, n=100)
        print(f"{name:>17}: {len(gaps)} gaps, p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")
    mean, median = (kind(during) * 2 / (kind(before) + kind(after)) for kind in (statistics.mean, statistics.median))
    print(
        f"ratio: {mean:.2f} (mean), {median:.2f} (median); answers {burst.stdout.decode().strip()} in {seconds:.1f} s"
    )


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--only-burst", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only_burst:
        os.nice(arguments.nice)
        print(dict(trio.run(Burst(arguments.port).run)))
        return
    before = 0.0 if arguments.pid is None else resident_mib(arguments.pid)
    trio.run(measure, arguments.port, arguments.nice)
    if arguments.pid is not None:
        print(f"memory +{resident_mib(arguments.pid) - before:.0f} MiB")


if __name__ == "__main__":
    main()
