"""Vectors through the engine: the real scheduler and cache, on the simulated device and on the two carriers."""

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from property_tests.memory import MemoryDevice, alone_as_vector
from triolet.engine.core.errors import InvalidRequest, Overloaded, PromptTooLong, RequestFailed
from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.pooling import Pooling
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions
from triolet.engine.stream import Output

from .mortal import Order
from .simulated import simulate
from .test_process import an_engine

PROMPT = list(range(1, 21))
KINDS = [Pooling(), Pooling(kind="mean")]


async def embed(engine: Engine, prompt: list[int], pooling: Pooling) -> Output:
    """The one output of a request."""
    async with engine.embed(prompt, pooling) as stream:
        (output,) = [output async for output in stream]
    assert (output.finish_reason, output.token_ids, output.text) == (FinishReason.STOP, (), "")
    return output


@pytest.mark.parametrize("pooling", KINDS)
async def test_a_vector_is_computed_in_chunks_beside_others(
    pooling: Pooling, autojump_clock: trio.testing.MockClock
) -> None:
    """Under a small budget, while another request decodes: what it gives alone, and every block is back."""
    simulation = simulate(runner=MemoryDevice, max_num_batched_tokens=6)
    async with (
        run_engine(simulation.parts, check=True) as engine,
        engine.generate([7, 8], SamplingParams(max_tokens=20, ignore_eos=True)) as stream,
    ):
        await anext(stream)
        output = await embed(engine, PROMPT, pooling)
        assert [output async for output in stream][-1].num_output_tokens == 20
    seed = next(j.seed for plan in simulation.device.plans for j in plan.joined if j.pooling is not None)
    assert output.vector == alone_as_vector(PROMPT, pooling=pooling, seed=seed)
    assert (output.num_prompt_tokens, output.num_output_tokens) == (20, 0)
    assert simulation.all_blocks_are_back


async def test_the_last_token_takes_what_is_cached_and_a_mean_does_not(autojump_clock: trio.testing.MockClock) -> None:
    """A mean is made of every position; its blocks are there for the next all the same."""
    simulation = simulate(runner=MemoryDevice)
    async with run_engine(simulation.parts, check=True) as engine:
        cached = [(await embed(engine, PROMPT, pooling)).num_cached_tokens for pooling in (*KINDS[::-1], *KINDS[::-1])]
    assert cached == [0, 16, 0, 16]


async def test_a_prompt_as_long_as_the_model_takes_has_a_vector(autojump_clock: trio.testing.MockClock) -> None:
    """No room for an answer is needed; one token more is too long."""
    simulation = simulate(runner=MemoryDevice, max_model_len=20)
    async with run_engine(simulation.parts, check=True) as engine:
        assert (await embed(engine, PROMPT, Pooling())).vector is not None
        with pytest.raises(PromptTooLong, match=r"The input has 21 tokens; the model takes at most 20\."):
            await embed(engine, [*PROMPT, 1], Pooling())


async def test_dimensions_beyond_the_model_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    """Before anything is tokenized."""
    parts = simulate(runner=MemoryDevice).parts
    parts = attrs.evolve(parts, facts=attrs.evolve(parts.facts, hidden_size=8))
    async with run_engine(parts) as engine:
        assert (await embed(engine, PROMPT, Pooling(dimensions=8))).vector is not None
        with pytest.raises(InvalidRequest, match="dimensions must be from 1 to 8, the model's hidden size, not 9"):
            await embed(engine, PROMPT, Pooling(dimensions=9))


@pytest.mark.parametrize("pooling", KINDS)
async def test_leaving_stops_it_at_the_next_step(pooling: Pooling, autojump_clock: trio.testing.MockClock) -> None:
    """In the middle of its prompt: no later plan names it, and its blocks are back."""
    simulation = simulate(runner=MemoryDevice, max_num_batched_tokens=4)
    async with run_engine(simulation.parts, check=True) as engine:
        async with engine.embed(PROMPT, pooling) as stream:
            await stream.admitted()
            await trio.sleep(1.5)
        steps = len(simulation.device.plans)
        await trio.sleep(10)
        assert len(simulation.device.plans) <= steps + 1
        assert simulation.all_blocks_are_back


async def test_a_deadline_leaves_no_vector(autojump_clock: trio.testing.MockClock) -> None:
    """It ends with `timeout`, as any request."""
    simulation = simulate(runner=MemoryDevice, max_num_batched_tokens=4)
    async with run_engine(simulation.parts, check=True) as engine:
        options = RequestOptions(deadline=trio.current_time() + 2.5)
        async with engine.embed(PROMPT, Pooling(), options=options) as stream:
            (output,) = [output async for output in stream]
    assert (output.finish_reason, output.vector) == (FinishReason.TIMEOUT, None)


async def test_a_full_queue_refuses_it(autojump_clock: trio.testing.MockClock) -> None:
    """As any request."""
    parts = simulate(max_num_queued_reqs=1, runner=MemoryDevice).parts
    async with run_engine(parts) as engine, engine.embed(PROMPT):
        with pytest.raises(Overloaded):
            await embed(engine, PROMPT, Pooling())


async def test_a_step_that_fails_fails_it(autojump_clock: trio.testing.MockClock) -> None:
    """With an error of its own."""
    simulation = simulate(runner=MemoryDevice)
    simulation.device.faults[1] = ValueError("planted")
    async with run_engine(simulation.parts, check=True) as engine:
        with pytest.raises(RequestFailed, match="A step on the device failed"):
            await embed(engine, PROMPT, Pooling())


@pytest.mark.parametrize("pooling", KINDS)
async def test_a_runner_process_carries_vectors_and_may_die(pooling: Pooling, tmp_path: Path) -> None:
    """Over the socket, too; where the process dies, the prompt is computed anew and nobody notices."""
    for order in (Order(), Order(fault="SIGKILL", when="prefill", marker=str(tmp_path / "died"))):
        async with an_engine(order, max_num_batched_tokens=8) as (engine, _):
            output = await embed(engine, PROMPT, pooling)
        assert output.vector is not None
        assert len(output.vector) == 8 * (len(PROMPT) if pooling.needs_every_state else 1)
