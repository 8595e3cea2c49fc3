"""`triolet serve` as its users run it: signals, exit statuses and deaths, seen from outside the process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import httpx

from ..limits import REAL_LIMIT_S

ROOT = Path(__file__).parents[2]
LONG = {"prompt": "The sea", "max_tokens": 4000, "ignore_eos": True, "stream": True, "temperature": 0}
SHORT = {**LONG, "max_tokens": 300}


@attrs.frozen(kw_only=True)
class Process:
    """A server in a process of its own."""

    process: "subprocess.Popen[str]"
    client: httpx.Client

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(timeout=REAL_LIMIT_S)

    def runners(self) -> list[int]:
        """The processes that it has started."""
        found: list[int] = []
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):  # it has ended meanwhile
                found += map(int, thread.read_text().split())
        return found

    @contextmanager
    def stream(self, body: dict[str, Any]) -> Iterator[Iterator[str]]:
        """The lines of a stream whose first text has come."""
        with self.client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            next(lines)
            yield lines


@contextmanager
def running(*flags: str) -> Iterator[Process]:
    """A server that answers; whatever the test has left of it is ended."""
    code = f"from triolet.api.cli import main; main(['serve', '--port', '0', '--kv-cache-memory', '200M', *{flags!r}])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Triolet is ready: http"), line
        with httpx.Client(
            base_url=line.split()[-1].removesuffix("/v1"), timeout=REAL_LIMIT_S, trust_env=False
        ) as client:
            yield Process(process=process, client=client)
    finally:
        process.kill()
        process.communicate()


def text_of(lines: list[str]) -> str:
    """The text of a whole stream but its first event."""
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert not any("error" in event for event in events), events[-1]
    return "".join(choice["text"] for event in events for choice in event["choices"])


def test_a_drain_lets_streams_finish_and_exits_with_0() -> None:
    """After SIGTERM health says 503 and when to come back, nothing new is taken, and what runs has its whole answer."""
    with running() as server:
        with server.stream(SHORT) as lines:
            whole = text_of(list(lines))
        with server.stream(SHORT) as lines:
            server.signal()
            health = server.client.get("/health")
            while health.status_code == 200:
                health = server.client.get("/health")
            assert (health.status_code, int(health.headers["retry-after"]) > 0) == (503, True)
            refused = server.client.post("/v1/completions", json=SHORT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert text_of(list(lines)) == whole
        assert server.wait() == 0


def test_a_drain_has_an_end() -> None:
    """Past --shutdown-timeout a stream gets one error and [DONE], and the status is still 0."""
    with running("--shutdown-timeout", "0.2") as server:
        with server.stream(LONG) as lines:
            server.signal()
            *_, error, done = lines
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"
        assert server.wait() == 0


def test_a_second_signal_does_not_wait() -> None:
    """However long the drain might take."""
    with running("--shutdown-timeout", "100000") as server, server.stream(LONG):
        server.signal()
        while server.client.get("/health").status_code == 200:
            pass
        server.signal()
        assert server.wait() == 0


def test_a_runner_may_be_killed_once_but_not_for_ever() -> None:
    """The stream goes on where it was and ends as if nothing had been; killed again and again, the engine dies, says
    so to everybody, and the status is not 0."""
    with running("--runner", "process") as server:
        with server.stream(SHORT) as lines:
            whole = text_of(list(lines))
        with server.stream(SHORT) as lines:
            (first,) = server.runners()
            os.kill(first, signal.SIGKILL)
            assert text_of(list(lines)) == whole
        assert server.runners() != [first]
        said: list[str] = []
        with server.stream(LONG) as lines:
            for line in lines:
                said.append(line)
                for runner in server.runners():
                    with suppress(ProcessLookupError):  # it has been reaped meanwhile
                        os.kill(runner, signal.SIGKILL)
        assert json.loads(said[-2].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert server.wait() == 1
