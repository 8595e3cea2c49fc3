"""A device that fails, hangs or is lost, in simulation: who is told, who goes on, and what health says meanwhile."""

import logging
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from triolet.engine.core.errors import EngineDead, InvalidRequest, ModelLoadError, RequestFailed
from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.device import DeviceLost
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions

from .simulated import EchoMemory, simulate


async def read(engine: Engine, prompt: str, **options: Any) -> tuple[str, FinishReason | None]:
    text, reason = "", None
    async with engine.generate(prompt, options=RequestOptions(**options)) as stream:
        async for output in stream:
            text += output.text
            reason = output.finish_reason
    return text, reason


class AnyGrammar:
    """A compiler that has everything already."""

    def has(self, spec: GrammarSpec) -> bool:
        return True

    def prepare(self) -> None: ...

    def compile(self, spec: GrammarSpec) -> None: ...


class Readers:
    """Clients in a nursery, and what each has got."""

    def __init__(self, engine: Engine, nursery: trio.Nursery) -> None:
        self.ends: dict[str, str] = {}
        self._engine = engine
        self._nursery = nursery

    async def start(self, *prompts: str, **options: Any) -> None:
        for prompt in prompts:
            self._nursery.start_soon(self._read, prompt, options)
            await wait_all_tasks_blocked()

    async def _read(self, prompt: str, options: dict[str, Any]) -> None:
        try:
            text, reason = await read(self._engine, prompt, **options)
            self.ends[prompt.strip()] = f"{text} ({reason})"
        except RequestFailed as error:
            self.ends[prompt.strip()] = error.message


async def test_a_step_that_raises_fails_its_requests_and_nobody_else(autojump_clock: trio.testing.MockClock) -> None:
    """Those in the batch get an error each; who waits is served; who comes later too."""
    simulation = simulate(max_num_seqs=2)
    simulation.device.faults[3] = OSError("a text with a /path")
    async with run_engine(simulation.parts, check=True) as engine:
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("one\n", "two\n", "waiting\n")
        failed = "A step on the device failed (OSError)."
        assert readers.ends == {"one": failed, "two": failed, "waiting": "waiting (stop)"}
        assert await read(engine, "later\n") == ("later", FinishReason.STOP)
        assert engine.health is None
        assert simulation.all_blocks_are_back


async def test_out_of_memory_makes_steps_smaller_before_it_fails_anyone(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The budget is halved each time, not below one token for each sequence, and everyone starts anew."""
    simulation = simulate(max_num_seqs=4, max_num_batched_tokens=12)
    simulation.device.faults.update({1: MemoryError(), 2: MemoryError()})
    async with run_engine(simulation.parts, check=True) as engine:
        assert await read(engine, "abcdefghijk\n") == ("abcdefghijk", FinishReason.STOP)
        assert [plan.num_tokens for plan in simulation.device.plans[:5]] == [12, 6, 4, 4, 4]
        simulation.device.faults[len(simulation.device.plans) + 1] = MemoryError()
        with pytest.raises(RequestFailed, match=r"^A step on the device failed \(MemoryError\)\.$"):
            await read(engine, "abc\n")
    assert "a step ran out of memory: from now on one has at most 4 tokens" in caplog.messages


async def test_a_broken_promise_on_the_device_ends_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    """An AssertionError in a step is our bug, though the device would recover."""
    simulation = simulate()
    simulation.device.faults[1] = AssertionError("sequence 1 joins twice")
    with pytest.raises(EngineDead, match=r"a step on the device failed \(AssertionError\)"):
        async with run_engine(simulation.parts) as engine:
            await read(engine, "hello\n")


async def test_unusable_logits_end_one_sequence(autojump_clock: trio.testing.MockClock) -> None:
    """The request gets an error with the reason; the rest of the batch goes on."""

    class NotANumber(EchoMemory):
        def execute(self, plan: StepPlan) -> StepResult:
            result = super().execute(plan)
            if plan.step != 3:
                return result
            return StepResult(
                step=3,
                sequences=result.sequences[1:],
                token_ids=result.token_ids[1:],
                failed=((result.sequences[0], "the model's logits are not numbers"),),
            )

    simulation = simulate(runner=NotANumber)
    async with run_engine(simulation.parts, check=True) as engine, trio.open_nursery() as nursery:
        readers = Readers(engine, nursery)
        await readers.start("first\n", "second\n")
    assert readers.ends == {"first": "the model's logits are not numbers", "second": "second (stop)"}
    assert simulation.all_blocks_are_back


@pytest.mark.parametrize(
    ("masks", "param"),
    [
        ({"allowed_token_ids": [7], "grammar": GrammarSpec.json_object()}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"grammar": GrammarSpec.json_object()}, "response_format"),
        ({}, None),
    ],
)
async def test_masks_that_leave_no_token_are_the_requests_own_fault(
    masks: dict[str, Any], param: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    """It is refused, with the field's name; nobody else notices."""

    class Strict(EchoMemory):
        def execute(self, plan: StepPlan) -> StepResult:
            result = super().execute(plan)
            if plan.step != 3:
                return result
            return StepResult(
                step=3, sequences=result.sequences[1:], token_ids=result.token_ids[1:], ruled_out=result.sequences[:1]
            )

    simulation = simulate(runner=Strict, grammars=AnyGrammar())
    async with run_engine(simulation.parts, check=True) as engine, trio.open_nursery() as nursery:
        readers = Readers(engine, nursery)

        async def refused() -> None:
            with pytest.raises(InvalidRequest, match=r"What the request rules out .* leaves no token") as caught:
                async with engine.generate("first\n", SamplingParams(**masks)) as stream:
                    assert "".join([output.text async for output in stream]) == "fi"
            assert caught.value.param == param

        nursery.start_soon(refused)
        await trio.testing.wait_all_tasks_blocked()
        await readers.start("second\n")
    assert readers.ends == {"second": "second (stop)"}
    assert simulation.all_blocks_are_back


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_lost_device_costs_time_and_nothing_else(depth: int, autojump_clock: trio.testing.MockClock) -> None:
    """The streams go on with the new one; it is counted."""
    simulation = simulate()
    simulation.device.faults[4] = DeviceLost("planted")
    simulation.device.restore_s = 7
    async with run_engine(simulation.parts, check=True, depth=depth) as engine:
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("one fish\n", "two fish\n")
        assert readers.ends == {"one fish": "one fish (stop)", "two fish": "two fish (stop)"}
        assert (engine.stats().runner_restarts, engine.health) == (1, None)
        await trio.sleep(2)  # the last steps in flight land
        assert simulation.all_blocks_are_back


async def test_while_the_device_is_away_the_engine_listens(autojump_clock: trio.testing.MockClock) -> None:
    """Deadlines pass, readers leave, others come; nobody waits for the device who need not."""
    simulation = simulate()
    simulation.device.faults[2] = DeviceLost("planted")
    simulation.device.restore_s = 1000
    async with run_engine(simulation.parts, check=True) as engine:
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("goes on\n")
            await readers.start("runs out\n", deadline=started + 50.5)
            with trio.move_on_after(30):
                await read(engine, "leaves\n")
            await readers.start("comes late\n")
            await trio.sleep_until(started + 51)
            assert readers.ends == {"runs out": " (timeout)"}
            assert engine.stats().running + engine.stats().waiting == 2
        assert trio.current_time() > started + 1000
    assert readers.ends == {
        "runs out": " (timeout)",
        "goes on": "goes on (stop)",
        "comes late": "comes late (stop)",
    }
    assert simulation.all_blocks_are_back


async def test_losses_in_a_row_end_the_engine_and_losses_far_apart_do_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Sixteen steps that land between two losses make the second a first one again."""
    simulation = simulate(max_model_len=200, num_blocks=100, max_losses_in_a_row=1)
    simulation.device.faults.update({step: DeviceLost("planted") for step in (3, 21, 39, 42)})
    reason = r"^The engine has stopped: the runner process is gone \(planted; 2 times in a row\)\.$"
    restarts: list[int] = []

    async def serve() -> None:
        async with run_engine(simulation.parts) as engine:
            try:
                await read(engine, "a" * 60 + "\n")
            finally:
                restarts.append(engine.stats().runner_restarts)

    with pytest.raises(EngineDead, match=reason):
        await serve()
    assert restarts == [3]


async def test_a_new_device_that_cannot_start_ends_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    """The model's file is gone, say: the reason names the kind of error."""
    simulation = simulate()
    simulation.device.faults[2] = DeviceLost("planted")

    async def restore() -> bool:
        raise ModelLoadError("/a/path is gone")

    simulation.device.restore = restore  # type: ignore[method-assign]
    with pytest.raises(EngineDead, match=r"^The engine has stopped: the scheduler failed \(ModelLoadError\)\.$"):
        async with run_engine(simulation.parts) as engine:
            await read(engine, "hello\n")


async def test_a_step_that_hangs_turns_health_until_it_lands(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason says what was in the step; deadlines pass meanwhile; then everything goes on."""
    caplog.set_level(logging.WARNING)
    simulation = simulate(step_timeout_s=10.0)
    simulation.device.faults[3] = 100.0
    async with run_engine(simulation.parts, check=True) as engine:
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("decoding\n")
            await readers.start("runs out\n", deadline=trio.current_time() + 40)
            await trio.sleep(11.5)
            assert engine.health is None
            await readers.start("waits\n")
            await trio.sleep(1)
            assert engine.health == (
                "A step has not landed for 10 s: 2 sequences with one token, 0 with 0 prompt tokens, "
                "0 blocks copied, the longest context 11."
            )
            await trio.sleep(40)
            assert readers.ends == {"runs out": "r (timeout)"}
            await trio.sleep(60)
            assert engine.health is None
        assert readers.ends == {
            "decoding": "decoding (stop)",
            "runs out": "r (timeout)",
            "waits": "waits (stop)",
        }
    assert "the step has landed after all" in caplog.messages


async def test_messages_do_not_hide_a_hanging_step(autojump_clock: trio.testing.MockClock) -> None:
    """At depth 2, where a message wakes the loop, the time still counts from when the step could begin."""
    simulation = simulate(step_timeout_s=10.0, max_num_seqs=1)
    simulation.device.faults[1] = 100.0
    async with run_engine(simulation.parts, check=True, depth=2) as engine:
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("x\n")
            for number in range(4):
                await trio.sleep(3)
                await readers.start(f"{number}\n")
            assert engine.health is not None
        assert len(readers.ends) == 5


async def test_a_step_that_hangs_where_it_can_be_given_up_is_lost(autojump_clock: trio.testing.MockClock) -> None:
    """Health has a reason until the device has been replaced; the streams go on."""
    simulation = simulate(step_timeout_s=10.0)
    simulation.device.faults[3] = 1e9
    simulation.device.replaceable = True
    simulation.device.restore_s = 20
    async with run_engine(simulation.parts, check=True) as engine:
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("decoding\n")
            await trio.sleep(25)
            assert engine.health is not None
        assert readers.ends == {"decoding": "decoding (stop)"}
        assert (engine.stats().runner_restarts, engine.health) == (1, None)


async def test_a_device_that_stays_away_turns_health(autojump_clock: trio.testing.MockClock) -> None:
    """Ten step timeouts are long enough to load a model."""
    simulation = simulate(step_timeout_s=10.0)
    simulation.device.faults[3] = DeviceLost("planted")
    simulation.device.restore_s = 150
    async with run_engine(simulation.parts, check=True) as engine:
        async with trio.open_nursery() as nursery:
            readers = Readers(engine, nursery)
            await readers.start("decoding\n")
            await trio.sleep(90)
            assert engine.health is None
            await trio.sleep(20)
            assert engine.health == "The device has been away for 100 s."
        assert (readers.ends, engine.health) == ({"decoding": "decoding (stop)"}, None)
