"""A look inside agrees with the engine's numbers, and tells blocks, requests and prefixes."""

import attrs
import trio
import trio.testing

from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.inside import BLOCKS_MAX, REQUESTS_MAX, RequestSeen
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions
from triolet.kvcache.tree import Outline
from triolet.kvcache.view import CACHED, FREE, LIMBO, NUM_COLOURS, OWNED, SHARED, BlockState

from .simulated import Simulation, simulate


async def ask(engine: Engine, text: str, name: str, **params: int) -> None:
    options = RequestOptions(label=name)
    async with engine.generate(text, SamplingParams(**params), request_id=f"id-{name}", options=options) as stream:  # type: ignore[arg-type]
        _ = [output async for output in stream]


def agree(simulation: Simulation, engine: Engine) -> None:
    """Cells, counts, and the engine's own numbers."""
    look = engine.inside.look()
    counts, stats = look.counts, engine.stats()
    assert look.stats == stats
    assert counts.free + counts.cached + counts.owned + counts.shared + counts.limbo == stats.num_blocks
    assert counts.free + counts.cached == stats.num_free_blocks
    assert stats.kv_usage == (counts.owned + counts.shared + counts.limbo) / stats.num_blocks
    told = (look.cells.count(FREE), look.cells.count(CACHED), look.cells.count(LIMBO), look.cells.count(SHARED))
    assert told == (counts.free, counts.cached, counts.limbo, counts.shared)
    for number, cell in enumerate(look.cells):
        (block,) = engine.inside.blocks(number, 1)
        state = (BlockState.FREE, BlockState.CACHED, BlockState.LIMBO, BlockState.SHARED)[cell : cell + 1]
        assert block.seen.state is (state[0] if state else BlockState.OWNED)
        assert len(block.owners) <= block.seen.refcount
    simulation.cache.check()


async def test_a_look_agrees_with_the_engine_at_every_step(mock_clock: trio.testing.MockClock) -> None:
    """Prompts in chunks, forks, shared prefixes, one that leaves in mid-step: the counts are those of the metrics."""
    simulation = simulate(max_num_batched_tokens=8)
    async with run_engine(simulation.parts) as engine, trio.open_nursery() as nursery:
        agree(simulation, engine)
        for name in ("one", "two"):
            nursery.start_soon(ask, engine, f"hello you {name}\n", name)
        nursery.start_soon(ask, engine, "hello you both\n", "three")
        for _ in range(9):
            await trio.testing.wait_all_tasks_blocked()
            agree(simulation, engine)
            mock_clock.jump(1)
        assert engine.abort("id-two")
        await trio.testing.wait_all_tasks_blocked()
        agree(simulation, engine)
        nursery.cancel_scope.cancel()


async def test_a_request_is_told_with_its_colour_and_its_progress(mock_clock: trio.testing.MockClock) -> None:
    """One decodes, one computes its prompt, one waits: each under the name that its client knows."""
    parts = simulate(max_num_seqs=2, max_num_batched_tokens=6).parts
    async with run_engine(parts) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(ask, engine, "hello\n", "first")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, engine, "a longer prompt\n", "second")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, engine, "late\n", "third")
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        look = engine.inside.look()
        first, second, third = look.requests
        assert [request.name for request in look.requests] == ["first", "second", "third"]
        assert (first.state, first.colour, first.num_output_tokens, first.num_blocks) == ("decode", 0, 2, 2)
        assert (second.state, second.colour, second.num_computed_tokens) == ("prefill", 1, 5)
        assert (third.state, third.colour, third.num_blocks) == ("waiting", None, 0)
        assert (third.arrival_time, third.first_token_time) == (2.0, None)
        assert (first.arrival_time, first.first_token_time) == (0.0, 1.0)
        assert OWNED + 1 in look.cells
        assert (look.token_budget, look.max_num_seqs, look.num_more_requests) == (6, 2, 0)
        (block,) = [told for told in engine.inside.blocks(0, 99) if told.owners == ("first",)][:1]
        assert bytes(block.token_ids) == b"hell"
        nursery.cancel_scope.cancel()


def colours(engine: Engine) -> dict[str, int | None]:
    return {request.name: request.colour for request in engine.inside.look().requests}


async def test_colours_are_kept_and_given_again(mock_clock: trio.testing.MockClock) -> None:
    """While a request holds blocks its colour stays; the next one gets what is free; beyond that they are shared."""
    simulation = simulate(max_num_seqs=16, max_num_batched_tokens=512, num_blocks=256)
    async with run_engine(simulation.parts) as engine, trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []

        async def run(name: str) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await ask(engine, f"{name} with a rather long prompt\n", name)

        for number in range(NUM_COLOURS + 1):
            nursery.start_soon(run, f"r{number}")
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            before = colours(engine)
        assert before["r1"] == 1
        assert len({before[f"r{number}"] for number in range(NUM_COLOURS)}) == NUM_COLOURS
        assert before[f"r{NUM_COLOURS}"] is not None
        scopes[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert "r1" not in colours(engine)
        nursery.cancel_scope.cancel()


async def test_a_look_is_bounded(mock_clock: trio.testing.MockClock) -> None:
    """No more requests than REQUESTS_MAX, with the number of the rest; no more blocks than BLOCKS_MAX, none outside."""
    simulation = simulate(max_num_seqs=1, max_num_queued_reqs=REQUESTS_MAX + 10, num_blocks=128)
    async with run_engine(simulation.parts) as engine, trio.open_nursery() as nursery:
        for number in range(REQUESTS_MAX + 5):
            nursery.start_soon(ask, engine, "hello\n", str(number))
        await trio.testing.wait_all_tasks_blocked()
        look = engine.inside.look()
        assert (len(look.requests), look.num_more_requests) == (REQUESTS_MAX, 5)
        assert all(isinstance(request, RequestSeen) for request in look.requests)
        assert len(engine.inside.blocks(0, 1000)) == BLOCKS_MAX
        assert [told.seen.block for told in engine.inside.blocks(126, 5)] == [126, 127]
        assert engine.inside.blocks(128, 5) == ()
        nursery.cancel_scope.cancel()


async def test_prefixes_are_followed_from_what_is_there(autojump_clock: trio.testing.MockClock) -> None:
    """What was cached before and what comes later; afterwards nobody listens."""
    simulation = simulate()
    inside_of = attrs.asdict(simulation.parts, recurse=False)["cache"]
    async with run_engine(simulation.parts) as engine:
        await ask(engine, "hello there\n", "before", max_tokens=2)
        assert not inside_of.events.wanted
        with engine.inside.prefixes() as prefixes:
            assert prefixes.fill()
            assert not prefixes.fill()
            await ask(engine, "hello you\n", "after", max_tokens=1)
            told = prefixes.outline(max_branches=9, max_visits=99)
            assert inside_of.events.wanted
        assert not inside_of.events.wanted
    assert [bytes(branch.token_ids) for branch in told.branches] == [b"hell", b"o yo", b"o th"]
    assert isinstance(told, Outline)
    assert (told.num_blocks, told.is_whole) == (4, True)
