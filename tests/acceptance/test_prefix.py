"""A system prompt that was computed once is not computed again: counted in cached and in scheduled tokens."""

import random
from pathlib import Path

import pytest

from .asking import check_pool_is_free
from .models import BLOCK_SIZE, random_model
from .serving import Served, serving

MAX_TOKENS = 8
SYSTEM = 1000


@pytest.fixture
def system_prompt() -> str:
    """A thousand tokens of a model that reads bytes."""
    return "".join(random.Random(0).choices("abcdefghij .", k=SYSTEM))


async def ask_chat(served: Served, system: str, user: str) -> tuple[str, dict[str, int], int]:
    """The answer, its usage, and how many tokens the steps of the engine computed for it."""
    before = served.engine.stats()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    response = await served.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    await served.wait_idle()
    check_pool_is_free(served.engine)
    usage = response.json()["usage"]
    numbers = {
        "prompt": usage["prompt_tokens"],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "completion": usage["completion_tokens"],
    }
    scheduled = served.engine.stats().scheduled_tokens - before.scheduled_tokens
    return response.json()["choices"][0]["message"]["content"], numbers, scheduled


async def test_the_second_chat_with_the_same_system_prompt_skips_its_prefill(
    tmp_path: Path, system_prompt: str
) -> None:
    """The first computes every token, the second those that are not in the first one's full blocks."""
    model = random_model(tmp_path / "random", max_position_embeddings=2048)
    async with serving(model.config()) as served:
        _, first, first_scheduled = await ask_chat(served, system_prompt, "What is this?")
        _, second, second_scheduled = await ask_chat(served, system_prompt, "Where is it?")
        answer, third, third_scheduled = await ask_chat(served, system_prompt, "Where is it?")
    async with serving(model.config(enable_prefix_caching=False)) as served:
        computed, _, uncached_scheduled = await ask_chat(served, system_prompt, "Where is it?")
    assert first["prompt"] > SYSTEM
    assert first["cached"] == 0
    assert first_scheduled == first["prompt"] + MAX_TOKENS - 1
    assert second["cached"] >= SYSTEM // BLOCK_SIZE * BLOCK_SIZE
    assert second_scheduled == second["prompt"] - second["cached"] + MAX_TOKENS - 1
    assert third["cached"] == (third["prompt"] - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert third_scheduled == third["prompt"] - third["cached"] + MAX_TOKENS - 1
    assert uncached_scheduled == second["prompt"] + MAX_TOKENS - 1
    assert answer == computed


async def test_a_prompt_that_differs_in_its_first_token_shares_nothing(tmp_path: Path, system_prompt: str) -> None:
    """What follows is the same text, and still not the same prefix."""
    model = random_model(tmp_path / "random", max_position_embeddings=2048)
    async with serving(model.config()) as served:
        await ask_chat(served, "x" + system_prompt, "What is this?")
        _, usage, scheduled = await ask_chat(served, "y" + system_prompt, "What is this?")
    assert usage["cached"] < 2 * BLOCK_SIZE
    assert scheduled == usage["prompt"] - usage["cached"] + MAX_TOKENS - 1
