"""The kept batch refuses every plan that breaks its promises, and says how."""

from typing import Any

import attrs
import numpy as np
import pytest

from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import JoinedSequence, StepPlan
from triolet.model.batch import KeptBatch


def joined(sequence: int = 1, **fields: Any) -> JoinedSequence:
    fields = {
        "token_ids": (5, 6, 7, 8, 9),
        "num_prompt_tokens": 5,
        "num_computed": 0,
        "block_tables": ((2, 3),),
        "sampling": SamplingParams(),
        "seed": 0,
        **fields,
    }
    return JoinedSequence(sequence=sequence, **fields)


def plan_of(num_sequences: int = 1, num_tokens: int = 1, **fields: Any) -> StepPlan:
    return StepPlan(step=1, num_sequences=num_sequences, num_tokens=num_tokens, **fields)


def new_batch(*, num_groups: int = 1) -> KeptBatch:
    return KeptBatch(num_groups=num_groups, block_size=4, num_blocks=10)


def carry_out(batch: KeptBatch, plan: StepPlan) -> None:
    batch.apply(plan)
    batch.work(plan)


CHUNK = {"chunk_sequences": (1,), "chunk_lengths": (5,), "num_tokens": 5}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(0, 0, left=(4,)), "sequence 4 leaves, but is not in the batch"),
        (plan_of(joined=(joined(), joined())), "sequence 1 joins, but is in the batch already"),
        (plan_of(joined=(joined(num_computed=5),)), "sequence 1 joins with 5 of 5 tokens computed"),
        (plan_of(joined=(joined(num_computed=-1),)), "sequence 1 joins with -1 of 5 tokens computed"),
        (plan_of(joined=(joined(block_tables=((1,), (2,))),)), "sequence 1 joins with 2 tables, not 1"),
        (plan_of(joined=(joined(block_tables=((10,),)),)), "block 10 is in a table, but there are 10 blocks"),
        (plan_of(2, joined=(joined(),)), "the plan counts 2 sequences, the batch has 1"),
        (plan_of(num_tokens=2, joined=(joined(),)), "the plan counts 2 tokens, its sequences 1"),
        (
            plan_of(joined=(joined(),), write_sequences=(9,), write_groups=(0,), write_indexes=(0,), write_blocks=(1,)),
            "sequence 9 has a table entry written, but is not in the batch",
        ),
        (
            plan_of(joined=(joined(),), write_sequences=(1,), write_groups=(1,), write_indexes=(0,), write_blocks=(1,)),
            "a table entry of group 1 is written; there are 1 groups",
        ),
        (
            plan_of(
                joined=(joined(),), write_sequences=(1,), write_groups=(0,), write_indexes=(0,), write_blocks=(-2,)
            ),
            "block -2 is in a table, but there are 10 blocks",
        ),
        (
            plan_of(joined=(joined(),), write_sequences=(1,), write_groups=(), write_indexes=(0,), write_blocks=(1,)),
            "the columns of the plan's table writes differ in length",
        ),
        (
            plan_of(joined=(joined(),), chunk_sequences=(8,), chunk_lengths=(2,)),
            "sequence 8 computes a chunk, but is not in the batch",
        ),
        (plan_of(joined=(joined(),), chunk_sequences=(1,)), "the columns of the plan's chunks differ in length"),
        (
            plan_of(num_tokens=6, joined=(joined(),), chunk_sequences=(1,), chunk_lengths=(6,)),
            "sequence 1 is to compute 6 tokens; it has 5 to compute",
        ),
        (
            plan_of(num_tokens=-1, joined=(joined(),), chunk_sequences=(1,), chunk_lengths=(-1,)),
            "sequence 1 is to compute -1 tokens",
        ),
        (
            plan_of(joined=(joined(block_tables=((2,),)),), **CHUNK),
            "sequence 1 is to write position 4, but its table has no block 1",
        ),
        (
            plan_of(joined=(joined(block_tables=((2, None),)),), **CHUNK),
            "sequence 1 is to write position 4, but its table has no block 1",
        ),
    ],
)
def test_a_broken_plan_is_a_bug_and_says_which(plan: StepPlan, message: str) -> None:
    """AssertionError, never a wrong answer."""
    with pytest.raises(AssertionError) as error:
        carry_out(new_batch(), plan)
    assert message in str(error.value)


def test_a_sequence_that_has_nothing_to_compute_must_rest() -> None:
    """One whose logits failed has no token for a next step: naming it again is a bug."""
    batch, plan = new_batch(), plan_of(joined=(joined(),), **CHUNK)
    batch.apply(plan)
    work = batch.work(plan)
    assert work is not None
    batch.advance(work, np.empty(0, np.int64), np.empty(0, np.int64))
    with pytest.raises(AssertionError, match="sequence 1 is to compute 1 tokens; it has 0 to compute"):
        batch.work(plan_of())


def test_the_flat_batch_of_a_mixed_step() -> None:
    """Tokens, positions, slots and sampled rows, in the order of the rows."""
    batch = new_batch()
    members = (
        joined(1, num_computed=4),
        joined(2, block_tables=((7, 0),), num_computed=2),
        joined(3, block_tables=((5, 6),)),
        joined(4, block_tables=((8, 9),)),
    )
    plan = plan_of(4, 6, joined=members, chunk_sequences=(2, 3, 4), chunk_lengths=(3, 2, 0))
    batch.apply(plan)
    work = batch.work(plan)
    assert work is not None
    assert work.token_ids.tolist() == [9, 7, 8, 9, 5, 6]
    assert work.positions.tolist() == [4, 2, 3, 4, 0, 1]
    assert work.layout.query_lengths.tolist() == [1, 3, 2]
    assert work.layout.context_lengths.tolist() == [5, 5, 2]
    assert work.layout.write_slots[0].tolist() == [3 * 4, 7 * 4 + 2, 7 * 4 + 3, 0, 5 * 4, 5 * 4 + 1]
    assert [batch.sequence(row) for row in work.sampled_rows] == [1, 2]
    assert work.sampled_tokens.tolist() == [0, 3]


def test_tables_grow_by_differences() -> None:
    """Entries beyond the first width are written one by one, for each group on its own."""
    batch = new_batch(num_groups=2)
    batch.apply(plan_of(joined=(joined(block_tables=((2, 3), (4, 5))),)))
    batch.apply(plan_of(write_sequences=(1, 1), write_groups=(0, 1), write_indexes=(30, 2), write_blocks=(6, 7)))
    work = batch.work(plan_of())
    assert work is not None
    first, second = work.layout.tables
    assert first.shape == second.shape
    assert first[0, [0, 1, 2, 30]].tolist() == [2, 3, -1, 6]
    assert second[0, [0, 1, 2, 30]].tolist() == [4, 5, 7, -1]


def test_a_row_that_moves_keeps_everything() -> None:
    """The last row takes the place of the one that leaves; the table behind it is clean for the next to join."""
    batch = new_batch()
    asked = SamplingParams(temperature=0.5, top_k=3, top_p=0.7, min_p=0.1, min_tokens=2)
    batch.apply(
        plan_of(
            2, joined=(joined(1), joined(2, block_tables=((6, 7, 8),), sampling=asked, seed=-1, end_token_ids=(3,)))
        )
    )
    batch.apply(plan_of(2, left=(1,), joined=(joined(3, block_tables=((1,),)),)))
    assert [batch.sequence(row) for row in range(len(batch))] == [2, 3]
    work = batch.work(plan_of(2, 2))
    assert work is not None
    assert work.layout.tables[0][:, :3].tolist() == [[6, 7, 8], [1, -1, -1]]
    rows = batch.sampling(np.array([1, 0]))
    assert rows.temperature.tolist() == [1.0, 0.5]
    assert rows.top_k.tolist() == [0, 3]
    assert rows.top_p.tolist() == [1.0, 0.7]
    assert rows.min_p.tolist() == [0.0, 0.1]
    assert rows.seeds.tolist() == [0, 2**64 - 1]
    assert rows.positions.tolist() == [5, 5]
    assert rows.masked == ((1, (3,)),)


def test_nothing_is_masked_once_min_tokens_are_out() -> None:
    """The count goes from the prompt's end, also for a sequence that comes back with tokens of its own."""
    batch = new_batch()
    asked = SamplingParams(min_tokens=2)
    early = joined(1, num_prompt_tokens=4, sampling=asked, end_token_ids=(3, 4))
    late = attrs.evolve(early, sequence=2, num_prompt_tokens=3)
    batch.apply(plan_of(2, joined=(early, late)))
    assert batch.sampling(np.array([0, 1])).masked == ((0, (3, 4)),)
