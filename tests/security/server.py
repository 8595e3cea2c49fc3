"""A server over the real scheduler and a simulated device: `python -m tests.security.server [flags of triolet serve]`.

Run with `python -O` by those tests that show what holds without assertions. At its end the scheduler and the cache
check their laws; a breach is an exit status other than 0.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import attrs
import trio

from property_tests.reporting import ReportingMemory
from triolet.api.config import ServerConfig
from triolet.api.serve import serve
from triolet.engine.config import EngineConfig
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine

from ..engine.simulated import Simulation, simulate
from ..limits import REAL_LIMIT_S


def simulation() -> Simulation:
    """Large enough for what a fuzzer sends, with steps that take no time."""
    return simulate(
        num_blocks=512,
        block_size=16,
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        step_s=0.0,
        runner=ReportingMemory,
    )


async def run(config: ServerConfig, *, signals: bool = True, **more: Any) -> int:
    """Serve until told to stop."""
    parts = simulation().parts

    def open_engine(_: EngineConfig, *, observer: Any, progress: Any) -> AbstractAsyncContextManager[Engine]:
        return run_engine(parts, observer=observer)

    return await serve(EngineConfig(), config, open_engine=open_engine, version="9.9", signals=signals, **more)


@attrs.frozen
class Running:
    """A server in a process of its own."""

    url: str
    process: "subprocess.Popen[str]"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running(*python_flags: str, **config: Any) -> Iterator[Running]:
    """A server process; at the end it is told to stop and must have found nothing wrong."""
    settings = repr({"port": 0, "shutdown_timeout": 1.0, **config})
    code = f"import sys, trio; from {__name__} import *; sys.exit(trio.run(run, ServerConfig(**{settings})))"
    command = [sys.executable, *python_flags, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd())
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Triolet is ready: http"), line or process.communicate()[1]
        yield Running(line.split()[-1].removesuffix("/v1"), process)
        process.terminate()
        _, said = process.communicate(timeout=REAL_LIMIT_S)
        assert process.returncode == 0, said
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def main() -> None:
    sys.exit(trio.run(run, ServerConfig(port=0)))


if __name__ == "__main__":
    main()
