"""The process carrier: a runner that dies, hangs or fails, at any place, and what its requests see of it: nothing."""

import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from property_tests.memory import alone
from triolet.engine.core.errors import ConfigurationError, EngineDead, ModelLoadError, RequestFailed, StartError
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import choice_seed
from triolet.engine.device_process import ProcessDevice
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine

from ..limits import REAL_LIMIT_S
from .mortal import FACTORY, Order
from .simulated import VOCAB_SIZE, simulate

PROMPTS = {1: [1, 2, 3, 4, 5, 6, 7], 2: [9] * 30, 3: [1, 2, 3, 4, 5, 6]}
"""By the seed. The first and the third share a block."""


@asynccontextmanager
async def a_device(order: Order) -> AsyncIterator[ProcessDevice]:
    async with trio.open_nursery() as nursery:
        device = ProcessDevice(FACTORY)
        nursery.start_soon(device.run)
        try:
            assert await device.start(order, str) == "answer"
            yield device
        finally:
            device.close()


@asynccontextmanager
async def an_engine(order: Order, **settings: float) -> AsyncIterator[tuple[Engine, ProcessDevice]]:
    simulation = simulate(num_blocks=order.num_blocks, block_size=order.block_size, **settings)  # type: ignore[arg-type]
    async with (
        a_device(order) as device,
        run_engine(attrs.evolve(simulation.parts, device=device), check=True) as engine,
    ):
        yield engine, device


async def read(engine: Engine, seed: int, *, n: int = 1, max_tokens: int = 20) -> list[list[int]]:
    """The tokens of each answer."""
    given: list[list[int]] = [[] for _ in range(n)]
    params = SamplingParams(n=n, max_tokens=max_tokens, seed=seed, ignore_eos=True)
    async with engine.generate(PROMPTS[seed], params) as stream:
        async for output in stream:
            given[output.choice] += output.token_ids
    return given


def expected(seed: int, *, n: int = 1, max_tokens: int = 20) -> list[list[int]]:
    """The same from a request that is alone in the world."""
    return [
        alone(
            PROMPTS[seed],
            num_tokens=max_tokens,
            end_tokens=frozenset(),
            seed=choice_seed(seed, choice),
            vocab_size=VOCAB_SIZE,
        )
        for choice in range(n)
    ]


async def all_are_answered_as_if_alone(engine: Engine) -> None:
    answers: dict[int, list[list[int]]] = {}

    async def ask(seed: int, n: int) -> None:
        answers[seed] = await read(engine, seed, n=n)

    async with trio.open_nursery() as nursery:
        for seed, n in ((1, 2), (2, 1), (3, 1)):
            nursery.start_soon(ask, seed, n)
    assert answers == {1: expected(1, n=2), 2: expected(2), 3: expected(3)}


@pytest.mark.parametrize(
    ("fault", "when"),
    [("SIGKILL", "prefill"), ("SIGKILL", "decode"), ("SIGKILL", "copy"), ("SIGSEGV", "decode")],
)
async def test_a_runner_that_dies_is_replaced_and_no_stream_notices(
    fault: str, when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In prefill, in decode, while copying blocks: each stream goes on where it was, no token twice, none left out."""
    async with an_engine(Order(fault=fault, when=when, marker=str(tmp_path / "died"))) as (engine, _):
        await all_are_answered_as_if_alone(engine)
        assert (tmp_path / "died").exists()
        stats = engine.stats()
        assert (stats.runner_restarts, stats.running, stats.waiting) == (1, 0, 0)
        assert stats.num_free_blocks == stats.num_blocks
        assert engine.health is None
    assert f"the runner process is gone (killed by {fault})" in caplog.messages
    assert "the runner process has been replaced, for the 1. time" in caplog.messages


async def test_a_runner_that_is_killed_from_outside_is_replaced() -> None:
    """kill -9 by somebody else, at whatever moment it hits."""
    async with an_engine(Order(), max_model_len=256) as (engine, device):
        params = SamplingParams(max_tokens=200, seed=1, ignore_eos=True)
        first = device.pid
        assert first is not None
        async with engine.generate(PROMPTS[1], params) as stream:
            given = list((await anext(stream)).token_ids)
            os.kill(first, signal.SIGKILL)
            async for output in stream:
                given += output.token_ids
        assert given == expected(1, max_tokens=200)[0]
        assert device.pid != first
        assert engine.stats().runner_restarts == 1


async def test_a_runner_that_dies_while_nobody_asks_is_replaced_at_once() -> None:
    """The next request need not wait for it, and finds nothing of a cache that is gone."""
    replaced = trio.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been replaced" in record.getMessage():
                replaced.set()

    handler = Told()
    logging.getLogger("triolet.engine.recovery").addHandler(handler)
    try:
        async with an_engine(Order()) as (engine, device):
            assert await read(engine, 1) == expected(1)
            assert device.pid is not None
            os.kill(device.pid, signal.SIGKILL)
            await replaced.wait()
            assert await read(engine, 1) == expected(1)
            assert engine.stats().prefix_hits == 0
    finally:
        logging.getLogger("triolet.engine.recovery").removeHandler(handler)


async def test_a_runner_that_hangs_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    """A stopped process lands no step: past the limit it is killed, the log says what was in it, and all go on."""
    hung = tmp_path / "hung"
    order = Order(fault="SIGSTOP", when="decode", marker=str(hung))
    async with an_engine(order, step_timeout_s=5) as (engine, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_are_answered_as_if_alone, engine)
            while not hung.exists():
                await trio.testing.wait_all_tasks_blocked(0.001)
            mock_clock.jump(5)
        assert (engine.stats().runner_restarts, engine.health) == (1, None)
    message = next(message for message in caplog.messages if message.startswith("A step has not landed for 5 s"))
    assert "sequences with one token, 0 with 0 prompt tokens" in message
    assert "the runner process is gone (it hung and was killed)" in caplog.messages


async def test_a_runner_that_dies_again_and_again_ends_the_engine(tmp_path: Path) -> None:
    """After the allowed number of losses in a row every reader is told why, and so is who holds the scope."""
    reason = r"^The engine has stopped: the runner process is gone \(killed by SIGKILL; 3 times in a row\)\.$"

    async def serve() -> None:
        async with an_engine(Order(fault="SIGKILL", when="prefill"), max_losses_in_a_row=2) as (engine, _):
            with pytest.raises(EngineDead, match=reason):
                await read(engine, 1)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await serve()
    assert caught.group_contains(EngineDead, match=reason)


async def test_a_step_that_raises_in_the_runner_fails_its_requests_alone(tmp_path: Path) -> None:
    """Each gets its own error, without the error's text; the process stays, and answers the next."""
    async with an_engine(Order(fault="raise", when="decode", marker=str(tmp_path / "raised"))) as (engine, device):
        pid = device.pid
        with pytest.raises(RequestFailed) as caught:
            await read(engine, 1)
        assert caught.value.message == "A step on the device failed (OSError)."
        await all_are_answered_as_if_alone(engine)
        assert (device.pid, engine.stats().runner_restarts) == (pid, 0)


async def test_out_of_memory_in_the_runner_fails_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps become smaller, and everyone is answered."""
    async with an_engine(Order(fault="memory", when="prefill", marker=str(tmp_path / "full"))) as (engine, _):
        await all_are_answered_as_if_alone(engine)
    assert "a step ran out of memory: from now on one has at most 16 tokens" in caplog.messages


async def test_a_runner_that_no_longer_answers_is_replaced_and_fails_nobody(tmp_path: Path) -> None:
    """A step raises, and so does the probe after it: the fault is the device's, so the requests start anew."""
    order = Order(fault="raise", when="decode and reset", marker=str(tmp_path / "broken"))
    async with an_engine(order) as (engine, _):
        await all_are_answered_as_if_alone(engine)
        assert engine.stats().runner_restarts == 1


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("configuration", ConfigurationError, r"^--some-flag must be something else\.$"),
        ("raise", ModelLoadError, "^The model cannot be loaded: OSError: planted"),
        (
            "SIGKILL",
            ModelLoadError,
            r"^The model cannot be loaded: the runner process is gone \(killed by SIGKILL\)\.$",
        ),
    ],
)
async def test_what_keeps_a_runner_from_starting_is_said(fault: str, error: type[StartError], message: str) -> None:
    """The errors of loading cross as themselves, and no process is left."""
    with pytest.raises(ExceptionGroup) as caught:
        async with a_device(Order(fault=fault, when="load")):
            raise AssertionError("it has started")
    assert caught.group_contains(error, match=message)


async def test_progress_and_log_records_come_from_the_runner(caplog: pytest.LogCaptureFixture) -> None:
    """They arrive as they would from a thread, under the same names."""
    seen: list[tuple[str, int, int | None]] = []
    async with trio.open_nursery() as nursery:
        device = ProcessDevice(FACTORY, progress=lambda *args: seen.append(args))
        nursery.start_soon(device.run)
        await device.start(Order(), str)
        device.close()
    assert seen == [("Loading weights", 1, 2)]
    assert ("triolet.mortal", logging.WARNING, "made") in caplog.record_tuples


async def test_a_plan_larger_than_the_sockets_buffer_passes() -> None:
    """A prompt of a hundred thousand tokens goes out in pieces, without blocking."""
    order = Order(num_blocks=26_000)
    prompt = [7] * 100_000
    async with an_engine(order, max_model_len=104_000, max_num_batched_tokens=104_000) as (engine, _):
        params = SamplingParams(max_tokens=2, seed=5, ignore_eos=True)
        async with engine.generate(prompt, params) as stream:
            given = [token async for output in stream for token in output.token_ids]
    assert given == alone(prompt, num_tokens=2, end_tokens=frozenset(), seed=5, vocab_size=VOCAB_SIZE)


async def test_leaving_the_scope_leaves_no_process() -> None:
    """Closed or cancelled, in the middle of a step or not: it is killed and reaped."""
    pids = []
    async with an_engine(Order()) as (_, device):
        pids.append(device.pid)
    with trio.CancelScope() as scope:
        async with an_engine(Order(fault="SIGSTOP", when="decode")) as (engine, device):
            pids.append(device.pid)
            async with engine.generate(PROMPTS[1]) as stream:
                await anext(stream)
                scope.cancel()
                await trio.lowlevel.checkpoint()
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_runner_does_not_outlive_an_engine_that_is_killed() -> None:
    """Not even one that hangs and will never look at its socket."""
    code = (
        "import trio; from tests.engine.test_process import a_device, Order\n"
        "async def main():\n"
        "    async with a_device(Order()) as device:\n"
        "        print(device.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        handle = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    assert poll.poll(1000 * REAL_LIMIT_S), "the runner process is still there"
    os.close(handle)
