"""A pool that holds a tenth of the load: all finish, correctly, by turns."""

from pathlib import Path

from triolet.engine.open import open_engine

from .asking import ask_together, check_pool_is_free
from .models import BLOCK_SIZE, random_model

NUM_REQUESTS = 100
MAX_TOKENS = 32


async def test_a_hundred_requests_in_a_tenth_of_their_memory(tmp_path: Path) -> None:
    """Greedy and drawn ones: each says what it would say alone, preemptions are counted, the pool ends free."""
    model = random_model(tmp_path / "random", seed=4)
    half = NUM_REQUESTS // 2
    cases = model.greedy_cases(half, MAX_TOKENS, longest=80) + model.drawn_cases(half, MAX_TOKENS, longest=80)
    load = sum(-(-(len(case.prompt) + MAX_TOKENS) // BLOCK_SIZE) for case in cases)
    num_blocks = load // 10
    async with open_engine(model.config(num_blocks=num_blocks)) as engine:
        assert engine.stats().num_blocks == num_blocks
        answers = await ask_together(engine, cases)
        check_pool_is_free(engine)
        assert engine.stats().preemptions > 0
    assert [answer.token_ids for answer in answers] == [case.answer for case in cases]
    assert {answer.last.finish_reason for answer in answers} == {"length"}


async def test_plans_made_ahead_of_the_device_change_no_answer(tmp_path: Path) -> None:
    """Two steps in flight, in a pool that is short: the same tokens, and everything is back."""
    model = random_model(tmp_path / "random", seed=4)
    cases = model.greedy_cases(20, MAX_TOKENS, longest=80) + model.drawn_cases(10, MAX_TOKENS, longest=80)
    async with open_engine(model.config(num_blocks=60, max_steps_in_flight=2)) as engine:
        answers = await ask_together(engine, cases)
        check_pool_is_free(engine)
        assert engine.stats().preemptions > 0
    assert [answer.token_ids for answer in answers] == [case.answer for case in cases]
