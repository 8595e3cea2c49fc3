"""A step in which everybody computes one token takes shorter ways: the same comes of it."""

import attrs
import numpy as np
import pytest
import torch

from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import JoinedSequence, StepPlan
from triolet.model.batch import KeptBatch
from triolet.model.draws import draw
from triolet.model.sampling import Best

GREEDY = SamplingParams(temperature=0)
VOCAB = 8


def batch_of(*params: SamplingParams, num_known: int = 3, num_computed: int = 2) -> KeptBatch:
    batch = KeptBatch(num_groups=2, block_size=4, num_blocks=64)
    joined = tuple(
        JoinedSequence(
            sequence=place + 1,
            token_ids=tuple(range(num_known + place)),
            num_prompt_tokens=num_known + place,
            num_computed=num_computed + place,
            block_tables=((2 * place, 2 * place + 1), (32 + 2 * place, 33 + 2 * place)),
            sampling=one,
            seed=place,
            end_token_ids=(3,),
        )
        for place, one in enumerate(params)
    )
    batch.apply(StepPlan(step=1, num_tokens=len(params), num_sequences=len(params), joined=joined))
    return batch


def test_decodes_alone_are_what_chunks_of_one_token_are() -> None:
    """Every column of the step, tables and slots of both groups too, with rows at several places of their blocks."""
    batch = batch_of(*[GREEDY] * 4)
    plan = StepPlan(step=2, num_tokens=4, num_sequences=4)
    work = batch.work(plan)
    named = batch.work(attrs.evolve(plan, chunk_sequences=(1, 2, 3, 4), chunk_lengths=(1, 1, 1, 1)))
    assert work is not None
    assert named is not None
    assert [slot.tolist() for slot in work.layout.write_slots] == [[2, 11, 20, 29], [130, 139, 148, 157]]
    for field in ("rows", "token_ids", "positions", "sampled_rows", "sampled_tokens", "pooled_tokens"):
        np.testing.assert_array_equal(getattr(work, field), getattr(named, field))
    for field in ("query_lengths", "context_lengths", "tables", "write_slots"):
        np.testing.assert_array_equal(getattr(work.layout, field), getattr(named.layout, field))


def test_a_prompt_with_more_to_compute_than_its_token_samples_nothing() -> None:
    """A plan that names no chunk computes one token of everybody, also of who has two to compute."""
    batch = batch_of(GREEDY, GREEDY, num_computed=1)
    work = batch.work(StepPlan(step=2, num_tokens=2, num_sequences=2))
    assert work is not None
    assert (work.token_ids.tolist(), work.sampled_rows.tolist()) == ([1, 2], [])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_greedy_rows_take_the_best_and_a_broken_one_fails_alone(broken: float) -> None:
    """The largest logits that the kernels have found are believed, and looked at for what is no number."""
    batch = batch_of(GREEDY, GREEDY, GREEDY)
    logits = torch.zeros(3, VOCAB)
    best = Best(tokens=np.array([4, 5, 6]), logits=np.ones(3, np.float32))
    assert draw(logits, batch, np.arange(3), best).tokens.tolist() == [4, 5, 6]
    best.logits[1] = logits[1, 0] = broken
    draws = draw(logits, batch, np.arange(3), best)
    assert (draws.rows.tolist(), draws.tokens.tolist(), draws.failed_rows.tolist()) == ([0, 2], [4, 6], [1])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, min_tokens=4),
        SamplingParams(temperature=0, logit_bias={3: -100.0}),
        SamplingParams(temperature=1, top_k=1, allowed_token_ids=(2,)),
    ],
)
def test_the_best_is_not_taken_where_anybody_asks_for_more(params: SamplingParams) -> None:
    """Token 3 is the largest, and what this row may not sample."""
    batch = batch_of(params)
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0]])
    best = Best(tokens=np.array([3]), logits=np.array([3.0], np.float32))
    assert draw(logits, batch, np.arange(1), best).tokens.tolist() == [2]
