"""What a burst of requests far over the queue's bound does to the streams that are running.

    triolet serve --port 8000 --max-num-seqs 8 --max-num-queued-reqs 100
    python bench/burst.py --port 8000

Eight streams take every slot of the server. For some seconds they run undisturbed; then 5,000 requests come, 300
connections at a time, of which 100 wait and the others get 503. Prints the time between two events of a stream in
both phases and their ratio (goal: at most 1.2), how many were refused, and how the server's memory grew (on the same
machine, with --pid; the KV cache of the eight streams, which fills meanwhile, is in it).
"""

import argparse
import json
import statistics
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


class Burst:
    """One measurement."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.quiet: list[float] = []
        self.during: list[float] = []
        self.phase = self.quiet
        self.statuses: dict[str, int] = {}

    async def stream(self) -> None:
        """Read one stream for ever and note the gaps."""
        socket = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with socket:
            await socket.send_all(post({"prompt": "The sea", "max_tokens": 8000, "ignore_eos": True, "stream": True}))
            last = None
            while data := await socket.receive_some(65536):
                now = trio.current_time()
                if b"data: " in data:
                    if last is not None:
                        self.phase.append(now - last)
                    last = now

    async def ask(self, requests: "trio.MemoryReceiveChannel[int]") -> None:
        """Ask one request after the other; one that was accepted is waited for until the end."""
        async for _ in requests:
            socket = await trio.open_tcp_stream("127.0.0.1", self.port)
            async with socket:
                await socket.send_all(post({"prompt": "The sea", "max_tokens": 5}))
                status = (await socket.receive_some(12))[9:12].decode()
                self.statuses[status] = self.statuses.get(status, 0) + 1

    async def burst(self) -> None:
        send, receive = trio.open_memory_channel[int](0)
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_CONNECTIONS):
                nursery.start_soon(self.ask, receive)
            async with send:
                for number in range(NUM_REQUESTS):
                    await send.send(number)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_STREAMS):
                nursery.start_soon(self.stream)
            await trio.sleep(QUIET_S / 3)
            self.quiet.clear()
            await trio.sleep(QUIET_S)
            self.phase = self.during
            await self.burst()
            nursery.cancel_scope.cancel()


def resident_mib(pid: int | None) -> float:
    if pid is None:
        return float("nan")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pid", type=int)
    arguments = parser.parse_args()
    burst = Burst(arguments.port)
    before = resident_mib(arguments.pid)
    trio.run(burst.run)
    after = resident_mib(arguments.pid)
    for name, gaps in (("quiet", burst.quiet), ("during the burst", burst.during)):
        cuts = statistics.quantiles(gaps, n=100)
        print(f"{name:>17}: {len(gaps)} gaps, p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")
    mean = statistics.mean(burst.during) / statistics.mean(burst.quiet)
    median = statistics.median(burst.during) / statistics.median(burst.quiet)
    print(
        f"ratio: {mean:.2f} (mean), {median:.2f} (median); answers {burst.statuses}; memory +{after - before:.0f} MiB"
    )


if __name__ == "__main__":
    main()
