"""Vectors from the runner: the hidden states of transformers, whatever the chunks and whoever else is in the batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.running import Driver, our_model, reference_model
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.pooling import Pooling, numbers_of

PROMPT = [5, 17, 99, 3, 64, 8, 8, 120, 41, 2, 77]


def states_of(reference: Any, prompt: Sequence[int]) -> np.ndarray[Any, Any]:
    """What transformers gives out behind its last norm."""
    with torch.inference_mode():
        states: np.ndarray[Any, Any] = reference.model(torch.tensor([list(prompt)])).last_hidden_state[0].numpy()
    return states


def unit(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(vector / np.linalg.norm(vector))


def vector(driver: Driver, prompt: Sequence[int], pooling: Pooling, *, limit: int = 10**6) -> list[float]:
    """Of a sequence that computes at most `limit` tokens a step, then leaves."""
    name = driver.join(prompt, pooling=pooling)
    while True:
        result = driver.step(limit=limit)
        assert name not in result.sequences
        if found := dict(result.vectors).get(name):  # type: ignore[call-overload]
            driver.leave(name)
            return numbers_of(found)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["last", "mean"])
def test_a_vector_is_made_of_transformers_hidden_states(family: str, kind: Any) -> None:
    """The last token's, or the mean of all, one long."""
    reference = reference_model(family)
    states = states_of(reference, PROMPT)
    expected = unit(states[-1] if kind == "last" else states.mean(0))
    found = vector(Driver(our_model(reference)), PROMPT, Pooling(kind=kind))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_vector_may_be_cut_and_left_as_long_as_it_is() -> None:
    """Cut before it is made one long; without that, the states themselves."""
    reference = reference_model()
    states = states_of(reference, PROMPT)
    driver = Driver(our_model(reference))
    short = vector(driver, PROMPT, Pooling(dimensions=7))
    np.testing.assert_allclose(short, unit(states[-1][:7]), atol=1e-4)
    plain = vector(driver, PROMPT, Pooling(kind="mean", normalize=False))
    np.testing.assert_allclose(plain, states.mean(0), atol=1e-4)


MODEL = our_model(reference_model())


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.lists(st.integers(1, 130), min_size=1, max_size=24),
    kind=st.sampled_from(["last", "mean"]),
    limit=st.integers(1, 24),
    beside=st.integers(0, 2),
)
def test_s8_a_vector_does_not_depend_on_chunks_or_company(
    prompt: list[int], kind: Any, limit: int, beside: int
) -> None:
    """S8: in one piece and alone, or in chunks beside sequences that decode: the same vector."""
    alone = vector(Driver(MODEL), prompt, Pooling(kind=kind))
    driver = Driver(MODEL, num_blocks=256)
    for other in range(beside):
        driver.join([7 + other, 9, 11])
    np.testing.assert_allclose(vector(driver, prompt, Pooling(kind=kind), limit=limit), alone, atol=1e-5)


def test_two_are_pooled_beside_one_that_decodes() -> None:
    """Each gets its own rows of the batch, and the one that decodes its tokens."""
    driver = Driver(MODEL)
    expected = {
        kind: vector(Driver(MODEL), prompt, Pooling(kind=kind))  # type: ignore[arg-type]
        for kind, prompt in (("mean", PROMPT), ("last", PROMPT[::-1]))
    }
    decoding = driver.join([3, 4])
    first = driver.join(PROMPT, pooling=Pooling(kind="mean"))
    second = driver.join(PROMPT[::-1], pooling=Pooling())
    result = driver.step()
    assert result.sequences == (decoding,)
    vectors = dict(result.vectors)
    np.testing.assert_allclose(numbers_of(vectors[first]), expected["mean"], atol=1e-5)  # type: ignore[index]
    np.testing.assert_allclose(numbers_of(vectors[second]), expected["last"], atol=1e-5)  # type: ignore[index]
    assert driver.step({first: 0, second: 0}).vectors == ()


def test_states_that_are_no_numbers_fail_their_sequence() -> None:
    """And nobody else."""
    reference = reference_model()
    model = our_model(reference)
    model.embedding[9] = float("nan")
    driver = Driver(model)
    good, bad = driver.join([3, 4], pooling=Pooling()), driver.join([9], pooling=Pooling(kind="mean"))
    result = driver.step()
    assert [name for name, _ in result.vectors] == [good]
    assert result.failed == ((bad, "the model's hidden states are not numbers"),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "max"}, "pooling must be one of last, mean, not 'max'."),
        ({"dimensions": 0}, "dimensions must be an integer of at least 1, not 0."),
    ],
)
def test_a_pooling_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    """With the field's name."""
    with pytest.raises(InvalidRequest) as refused:
        Pooling(**fields)
    assert refused.value.message == message
    with pytest.raises(InvalidRequest, match="dimensions must be from 1 to 64, the model's hidden size, not 65"):
        Pooling(dimensions=65).check(64)
