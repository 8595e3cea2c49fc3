"""What the load generator costs: microseconds of CPU for each event that it receives.

    python bench/client.py [--streams 32 128] [--steps 200] [--interval-ms 10]

A server in a process of its own writes one event to every stream, once per interval, as a step of an engine would. The
client is the one of `triolet bench serve`. It shares its cores with the servers that it measures: what it costs is
lost to them.
"""

import argparse
import socket
import subprocess
import sys
import time

import trio

from triolet.api.bench.client import resolve
from triolet.api.bench.load import Pace, run_load
from triolet.api.bench.measure import summarize
from triolet.api.bench.prompts import Ask
from triolet.api.bench.target import Target

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,'
    b'"model":"canned","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def serve(num_streams: int, num_steps: int, interval_s: float) -> None:
    """Print the port, take `num_streams` requests, then stream to all of them at once."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        streams = [listener.accept()[0] for _ in range(num_streams)]
        for stream in streams:
            stream.recv(65536)
            stream.sendall(HEAD)
        due_s = time.monotonic()
        for _ in range(num_steps):
            for stream in streams:
                stream.sendall(chunk(EVENT))
            due_s += interval_s
            time.sleep(max(0.0, due_s - time.monotonic()))
        for stream in streams:
            stream.sendall(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            stream.close()


def measure(num_streams: int, num_steps: int, interval_ms: float) -> tuple[float, float]:
    """CPU microseconds for an event while it runs, and afterwards to read it."""
    arguments = [sys.executable, __file__, "--serve", *map(str, (num_streams, num_steps, interval_ms))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        async def run() -> tuple[float, float]:
            address = await resolve(f"http://127.0.0.1:{port}")
            target = Target(name="A", address=address, model="canned")
            sessions = [(Ask(content="hello", max_tokens=num_steps),)] * num_streams
            ended: list[float] = []
            start = time.process_time()
            outcomes = await run_load(target, sessions, Pace(), on_done=lambda: ended.append(time.process_time()))
            end = time.process_time()
            summary = summarize([outcomes])
            assert summary.num_completed == num_streams, summary.errors
            num_events = summary.num_output_tokens
            assert num_events <= num_streams * num_steps
            count = num_streams * num_steps
            return (ended[-1] - start) / count * 1e6, (end - ended[-1]) / count * 1e6

        return trio.run(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--interval-ms", type=float, default=10.0)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(int(given.serve[0]), int(given.serve[1]), float(given.serve[2]) / 1e3)
        return
    print(f"{'streams':>8}   µs for an event: while it runs, and to read it afterwards")
    for num_streams in given.streams:
        running, reading = measure(num_streams, given.steps, given.interval_ms)
        print(f"{num_streams:>8}   {running:.1f} {reading:.1f}")


if __name__ == "__main__":
    main()
