"""Fifty concurrent streams say what each would say alone, in the engine and over HTTP, and leave the pool free."""

import pytest
import trio

from triolet.engine.open import open_engine

from .asking import ask_alone, ask_together, check_pool_is_free
from .models import Case, RandomModel, random_model
from .serving import serving, stream_completion

NUM_STREAMS = 50
Cases = tuple[RandomModel, list[Case]]


@pytest.fixture(scope="module", params=["greedy", "drawn", "mixed"])
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """A model, and fifty random prompts with their right answers."""
    model = random_model(tmp_path_factory.mktemp("models") / "random", seed=3)
    if request.param == "greedy":
        return model, model.greedy_cases(NUM_STREAMS, 16, seed=1)
    if request.param == "drawn":
        return model, model.drawn_cases(NUM_STREAMS, 16, seed=2)
    greedy, drawn = model.greedy_cases(NUM_STREAMS // 2, 24, seed=3), model.drawn_cases(NUM_STREAMS // 2, 8, seed=4)
    return model, [case for pair in zip(greedy, drawn, strict=True) for case in pair]


async def test_fifty_streams_equal_their_solo_runs(cases: Cases) -> None:
    """Alone each gives the right answer, and together each gives the same."""
    model, questions = cases
    expected = [case.answer for case in questions]
    async with open_engine(model.config()) as engine:
        alone = await ask_alone(engine, questions)
        check_pool_is_free(engine)
        assert [answer.token_ids for answer in alone] == expected
        before = engine.stats()
        together = await ask_together(engine, questions)
        check_pool_is_free(engine)
        after = engine.stats()
    assert [answer.token_ids for answer in together] == expected
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert {answer.last.finish_reason for answer in together} == {"length"}
    num_tokens = after.generation_tokens - before.generation_tokens
    assert num_tokens == sum(map(len, expected))
    assert num_tokens > 10 * (after.steps - before.steps)


async def test_fifty_streams_over_http_equal_their_solo_runs(cases: Cases) -> None:
    """Asked one by one and then all at once, each over a connection of its own: the same text arrives."""
    model, questions = cases
    together: dict[int, str] = {}
    async with serving(model.config()) as served:

        async def one(index: int) -> None:
            together[index] = await stream_completion(served, questions[index])

        alone = [await stream_completion(served, case) for case in questions]
        async with trio.open_nursery() as nursery:
            for index in range(NUM_STREAMS):
                nursery.start_soon(one, index)
        await served.wait_idle()
        check_pool_is_free(served.engine)
    assert [together[index] for index in range(NUM_STREAMS)] == alone
    assert all(alone)
