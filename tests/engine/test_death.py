"""When an actor dies: one error event for every open request, a reason for health, and EngineDead from the scope."""

import logging

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from triolet.engine.core.errors import EngineDead
from triolet.engine.device import DeviceFailed
from triolet.engine.engine import Engine
from triolet.engine.observer import NoObserver
from triolet.engine.open import run_engine

from .simulated import simulate

DEVICE_REASON = "The engine has stopped: a step on the device failed (OSError)."


async def test_a_device_that_fails_ends_every_open_request_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Running, waiting and unread: each reader gets what there is, then EngineDead; then the scope itself raises it."""
    simulation = simulate(max_num_seqs=1, fail_at=4)
    ends: list[str] = []
    healths: list[str | None] = []

    async def read(engine: Engine, prompt: str) -> None:
        text = ""
        try:
            async with engine.generate(prompt) as stream:
                async for output in stream:
                    text += output.text
        except EngineDead as error:
            healths.append(engine.health)
            ends.append(f"{text}: {error.message}")

    async def serve() -> None:
        async with trio.open_nursery() as outside, run_engine(simulation.parts) as engine:
            assert engine.health is None
            for prompt in ("running\n", "waiting\n", "waiting too\n"):
                outside.start_soon(read, engine, prompt)
                await wait_all_tasks_blocked()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve()
    assert caught.group_contains(EngineDead, match=r"^The engine has stopped: a step on the device failed \(OSError\)")
    assert sorted(ends) == [f": {DEVICE_REASON}", f": {DEVICE_REASON}", f"run: {DEVICE_REASON}"]
    assert healths == [DEVICE_REASON] * 3
    record = next(record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert record.message == DEVICE_REASON
    assert record.exc_info is not None


async def test_the_scope_raises_enginedead_itself_and_names_the_cause(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever uses an engine sees EngineDead and not a group; its cause is the device's error."""
    simulation = simulate(fail_at=1)

    async def serve() -> None:
        async with run_engine(simulation.parts) as engine, engine.generate("hello\n") as stream:
            async for _ in stream:
                pass

    with pytest.raises(EngineDead) as caught:
        await serve()
    assert caught.value.message == DEVICE_REASON
    assert isinstance(caught.value.__cause__, DeviceFailed)
    assert str(caught.value.__cause__.__cause__) == "the simulated device fell over"


async def test_readers_inside_the_scope_get_a_moment_for_the_news(autojump_clock: trio.testing.MockClock) -> None:
    """A reader in the engine's scope may still await after EngineDead, and nobody new comes in."""
    simulation = simulate(fail_at=1)
    told: list[str | None] = []

    async def read(engine: Engine) -> None:
        async with engine.generate("hello\n") as stream:
            try:
                await anext(stream)
            except EngineDead:
                await trio.sleep(1)
                told.append(engine.health)
                with pytest.raises(EngineDead, match="a step on the device failed"):
                    await engine.generate("another\n").__aenter__()

    async def serve() -> None:
        async with run_engine(simulation.parts) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(read, engine)
            nursery.start_soon(read, engine)
            await trio.sleep_forever()

    with pytest.raises(EngineDead):
        await serve()
    assert told == [DEVICE_REASON] * 2


async def test_a_reader_that_never_leaves_delays_the_end_by_a_bounded_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two seconds after the death the scope is cancelled, whatever its readers do."""
    with pytest.raises(EngineDead):
        async with run_engine(simulate(fail_at=1).parts) as engine, engine.generate("hello\n"):
            await trio.sleep_forever()
    assert trio.current_time() - 1 < 3600


async def test_a_broken_law_kills_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    """An AssertionError in the scheduler is our bug: the engine ends, and health names the actor."""
    simulation = simulate()

    def broken() -> None:
        raise AssertionError("K1")

    simulation.parts.scheduler.check = broken  # type: ignore[method-assign]
    with pytest.raises(EngineDead, match=r"the scheduler failed \(AssertionError\)"):
        async with run_engine(simulation.parts, check=True):
            await trio.sleep_forever()


async def test_the_detokenizers_death_ends_requests_too(autojump_clock: trio.testing.MockClock) -> None:
    """Whichever actor dies, the readers are told."""

    class Broken(NoObserver):
        def first_token(self, seconds: float) -> None:
            raise ZeroDivisionError

    with pytest.raises(EngineDead, match=r"the detokenizer failed \(ZeroDivisionError\)"):
        async with run_engine(simulate().parts, observer=Broken()) as engine, engine.generate("hello\n") as stream:
            _ = [output async for output in stream]


async def test_an_error_of_the_body_comes_out_as_itself(autojump_clock: trio.testing.MockClock) -> None:
    """The scope wraps nothing: what its body raises is what its caller sees."""
    with pytest.raises(ZeroDivisionError):
        async with run_engine(simulate().parts) as engine, engine.generate("hello\n"):
            raise ZeroDivisionError


async def test_closing_ends_requests_of_other_tasks(autojump_clock: trio.testing.MockClock) -> None:
    """A reader outside of the engine's scope is told that the engine has been closed, and so is a newcomer."""
    reasons: list[str] = []

    async def read(engine: Engine) -> None:
        try:
            async with engine.generate("hello\n") as stream:
                async for _ in stream:
                    pass
        except EngineDead as error:
            reasons.append(error.message)

    async with trio.open_nursery() as outside, run_engine(simulate().parts) as engine:
        outside.start_soon(read, engine)
        await trio.sleep(2.5)
    assert reasons == ["The engine has been closed."]
    with pytest.raises(EngineDead, match="The engine has been closed"):
        await engine.generate("hello\n").__aenter__()
