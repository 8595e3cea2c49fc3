"""Greedy tokens in float32 equal those of transformers' `generate` on the same weights, however they are scheduled."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from triolet.engine.engine import Engine
from triolet.engine.open import open_engine

from .asking import Answer, ask_alone, ask_together, check_pool_is_free
from .models import BLOCK_SIZE, MAX_LENGTH, Case, RandomModel, random_model

CHUNK = 16
MODELS: dict[str, dict[str, Any]] = {
    "grouped heads, separate head": {},
    "grouped heads, tied head": {"tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1},
    "multi-head, separate head": {"num_key_value_heads": 4},
    "multi-head, tied head": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "dynamic scaling": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "llama3 scaling, tied head": {
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}


@attrs.frozen
class Expected:
    """A model, and what transformers answers."""

    model: RandomModel
    cases: list[Case]
    short: list[Case]
    """Prompts of one block or two, whose answers need another."""

    def check(self, answers: Sequence[Answer], engine: Engine) -> None:
        check(answers, self.cases, engine)


@pytest.fixture(scope="module", params=MODELS)
def expected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """One of the models and its reference answers."""
    fields = dict(MODELS[request.param])
    if "rope_parameters" in fields:
        fields["rope_parameters"] = {"rope_theta": 10000.0, **fields["rope_parameters"]}
    model = random_model(tmp_path_factory.mktemp("models") / "random", **fields)
    return Expected(model, model.greedy_cases(8, 20), model.greedy_cases(12, 20, seed=1, longest=24))


def check(answers: Sequence[Answer], cases: Sequence[Case], engine: Engine) -> None:
    assert [answer.token_ids for answer in answers] == [case.answer for case in cases]
    check_pool_is_free(engine)


async def test_alone_and_in_a_mixed_batch(expected: Expected) -> None:
    """One request at a time, then all at once; nothing is reused."""
    async with open_engine(expected.model.config(enable_prefix_caching=False)) as engine:
        expected.check(await ask_alone(engine, expected.cases), engine)
        before = engine.stats()
        expected.check(await ask_together(engine, expected.cases), engine)
        after = engine.stats()
        assert after.generation_tokens - before.generation_tokens > 4 * (after.steps - before.steps)
        assert after.cached_prompt_tokens == after.preemptions == 0


@pytest.mark.parametrize(
    "limits", [{"long_prefill_token_threshold": CHUNK}, {"max_num_batched_tokens": CHUNK, "max_num_seqs": 8}]
)
async def test_in_chunks_of_16_and_after_a_prefix_hit(expected: Expected, limits: dict[str, int]) -> None:
    """Prompts cut by the sequence's limit or by the step's; then again, with their full blocks found in the cache."""
    async with open_engine(expected.model.config(**limits)) as engine:
        expected.check(await ask_together(engine, expected.cases), engine)
        first = engine.stats()
        assert first.cached_prompt_tokens == 0
        expected.check(answers := await ask_together(engine, expected.cases), engine)
    cached = [(len(case.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for case in expected.cases]
    assert [answer.last.num_cached_tokens for answer in answers] == cached
    assert sum(cached) > 0


@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": CHUNK, "max_num_seqs": 8}])
async def test_after_forced_preemption(expected: Expected, limits: dict[str, int]) -> None:
    """A pool for one request of full length: several begin, all grow, and no growth fits."""
    config = expected.model.config(num_blocks=MAX_LENGTH // BLOCK_SIZE, **limits)
    async with open_engine(config) as engine:
        assert engine.stats().num_blocks == 8
        check(await ask_together(engine, expected.short), expected.short, engine)
        assert engine.stats().preemptions > 0
