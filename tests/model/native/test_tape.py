"""A tape or a step that does not fit is refused with a sentence, before anything is read or written."""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from tests.model.native.steps import POISON, Sequences, native_forward
from tests.model.running import reference_model, spec_of
from triolet.model.attention.interface import StepLayout
from triolet.model.batch import StepWork
from triolet.model.native.forward import NativeForward
from triolet.model.native.library import BufferShape, Code, Format, Library, Op
from triolet.model.native.tape import buffer_shapes, create

TOKENS = [[5, 6, 7, 8], [9, 10]]


@pytest.fixture
def forward(library: Library) -> NativeForward:
    """A tiny model over a poisoned cache."""
    reference = reference_model()
    return native_forward(library, spec_of(reference.config), reference.state_dict().items(), Format.BFLOAT16)


def changed(work: StepWork, **fields: Any) -> StepWork:
    layout = {name: fields.pop(name) for name in list(fields) if name in {a.name for a in attrs.fields(StepLayout)}}
    return attrs.evolve(work, layout=attrs.evolve(work.layout, **layout), **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": np.array([5, 6, 131, 8, 9, 10])}, "token 131 of 131"),
        ({"token_ids": np.array([5, 6, -1, 8, 9, 10])}, "token -1 of 131"),
        ({"positions": np.array([0, 1, -2, 3, 0, 1])}, "position -2 is below 0"),
        ({"sampled_tokens": np.array([0, 6])}, "sampled row 6 of 6"),
        ({"pooled_tokens": np.array([0, -1])}, "pooled row -1 of 6"),
        ({"pooled_tokens": np.zeros(7, np.int64)}, "pooled rows 7 of 6"),
        ({"query_lengths": np.array([4, 3])}, "queries 3 of a context of 2"),
        ({"query_lengths": np.array([3, 2])}, "queries in all 5 but tokens 6"),
        ({"query_lengths": np.array([4, 0])}, "queries 0 of a context of 2"),
        ({"context_lengths": np.array([17, 2])}, "a table of 1 blocks for 17"),
        ({"tables": (np.array([[64], [1]], np.int32),)}, "block 64 of 64"),
        ({"tables": (np.array([[3], [-1]], np.int32),)}, "block -1 of 64"),
        ({"write_slots": (np.array([0, 1, 2, 3, 4, 1024]),)}, "slot 1024 of 1024"),
    ],
)
def test_a_step_that_does_not_fit_touches_nothing(forward: NativeForward, fields: dict[str, Any], message: str) -> None:
    """It raises, the cache stays as it was, and the next step is right."""
    sequences = Sequences(forward, TOKENS)
    with pytest.raises(AssertionError, match=message):
        forward(changed(sequences.work([4, 2]), **fields))
    assert (forward.kv.memory == POISON).all()
    assert np.isfinite(sequences.step([4, 2]).numpy()).all()


def drop_table(ops: list[Op], buffers: list[BufferShape]) -> None:
    ops[0].linear = None


def swap_matrix(ops: list[Op], buffers: list[BufferShape]) -> None:
    products = [op for op in ops if op.code == Code.GEMM]
    products[0].linear = products[1].linear


def plain_for_paired(ops: list[Op], buffers: list[BufferShape]) -> None:
    products = [op for op in ops if op.code == Code.GEMM]
    products[2].linear = products[3].linear


def unknown_code(ops: list[Op], buffers: list[BufferShape]) -> None:
    ops[3].code = 8


def unknown_buffer(ops: list[Op], buffers: list[BufferShape]) -> None:
    ops[2].target = 6


def floats_for_activations(ops: list[Op], buffers: list[BufferShape]) -> None:
    ops[2].target = 0


def narrow_buffer(ops: list[Op], buffers: list[BufferShape]) -> None:
    buffers[2].width -= 16


def no_weight(ops: list[Op], buffers: list[BufferShape]) -> None:
    ops[2].weight = None


def far_tensor(ops: list[Op], buffers: list[BufferShape]) -> None:
    next(op for op in ops if op.code == Code.ATTENTION).tensor = 3


def no_logits(ops: list[Op], buffers: list[BufferShape]) -> None:
    ops.pop()
    ops.pop()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (drop_table, "operation 0: an embedding must be float32 or bfloat16"),
        (swap_matrix, "operation 3: a buffer has width 128 not 64"),
        (plain_for_paired, "operation 9: a paired matrix goes with silu_mul, no other"),
        (unknown_code, "operation 3: code 8 of 8"),
        (unknown_buffer, "operation 2: buffer 6 of 6"),
        (floats_for_activations, "operation 2: buffer 0 is of the other kind"),
        (narrow_buffer, "operation 3: a buffer has width 112"),
        (no_weight, "operation 2: a norm needs a weight"),
        (far_tensor, "operation 5: no such tensor, group or window"),
        (no_logits, "the last operation gives no logits"),
    ],
)
def test_a_tape_that_does_not_fit_is_refused(
    forward: NativeForward, spoil: Callable[[list[Op], list[BufferShape]], None], message: str
) -> None:
    """With the number of the operation, and what does not fit."""
    ops = [Op.from_buffer_copy(op) for op in forward.tape.ops]
    buffers = buffer_shapes(forward.model.spec)
    spoil(ops, buffers)
    with pytest.raises(AssertionError, match=message):
        create(forward.model, forward.kv, ops, buffers)


def test_a_cache_of_another_format_is_refused(library: Library) -> None:
    """Float32 activations need a float32 cache."""
    reference = reference_model()
    with pytest.raises(AssertionError, match="cache and activations must both be float32, or neither"):
        native_forward(
            library, spec_of(reference.config), reference.state_dict().items(), Format.FLOAT32, kv=Format.INT8
        )


def test_steps_are_timed_by_operation(forward: NativeForward) -> None:
    """With `profile` on; labels say what took the time."""
    forward.profile = True
    work = Sequences(forward, TOKENS).work([4, 2])
    forward(attrs.evolve(work, pooled_tokens=np.array([5])))
    seconds = forward.tape.take_seconds()
    assert {"gemm qkv", "attention", "norm", "gemm head"} < seconds.keys()
    assert all(spent > 0 for spent in seconds.values())
    assert set(forward.tape.take_seconds().values()) == {0.0}
