"""Masks, biases and penalties against a plain reference, one token at a time; by torch and by the kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.engine.core.params import SamplingParams
from triolet.model.shaping import Shaper, shape
from triolet.model.topk import largest

pytestmark = pytest.mark.usefixtures("row_kernels_or_none")

VOCAB = 40
tokens = st.integers(0, VOCAB - 1)
words = st.lists(tokens, min_size=1, max_size=3).map(tuple)
asked = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-1.5, 0.25, 2.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.2, 2.0]),
        "logit_bias": st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.0, 500.0]), max_size=4),
        "allowed_token_ids": st.lists(tokens, min_size=1, max_size=20, unique=True),
        "bad_word_token_ids": st.lists(words, min_size=1, max_size=6),
    },
)
# Few different tokens, so that bad words and penalties meet them.
texts = st.lists(st.integers(0, 5), max_size=12)


def plainly(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    """vLLM's order: allowed tokens, bad words, bias, then repetition, frequency and presence."""
    shaped = []
    for token, logit in enumerate(logits):
        value = np.float32(logit)
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            value = np.float32(-np.inf)
        for word in params.bad_word_token_ids:
            before = word[:-1]
            if word[-1] == token and (not before or tuple(output[-len(before) :]) == before):
                value = np.float32(-np.inf)
        value += np.float32(dict(params.logit_bias).get(token, 0))
        if token in prompt or token in output:
            factor = np.float32(params.repetition_penalty)
            value = value / factor if value > 0 else value * factor
        value -= np.float32(params.frequency_penalty) * np.float32(list(output).count(token))
        value -= np.float32(params.presence_penalty) * np.float32(token in output)
        shaped.append(float(value))
    return shaped


def shaper_of(params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Shaper:
    return Shaper(params, np.array(prompt, np.int64), np.array(output, np.int64))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(asked, texts, texts, texts), min_size=1, max_size=5), st.integers(0, 2**32))
def test_every_logit_is_that_of_the_plain_reference(
    requests: list[tuple[dict[str, Any], list[int], list[int], list[int]]], seed: int
) -> None:
    """Alone and together, in one batch of unlike requests, when they join and after they have taken further tokens."""
    logits = torch.randn(len(requests) + 1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    shaped, expected = [], []
    for place, (fields, prompt, output, later) in enumerate(requests):
        params = SamplingParams(**fields)
        shaper = shaper_of(params, prompt, output)
        for token in later:
            shaper.take(token)
        if Shaper.is_needed(params):
            shaped.append((place, shaper))
        expected.append(plainly(logits[place].tolist(), prompt, output + later, params))
    expected.append(logits[-1].tolist())
    shape(logits, shaped)
    assert logits.tolist() == expected


@pytest.mark.parametrize("fields", [{}, {"repetition_penalty": 1.0}, {"logit_bias": {}}, {"temperature": 0.3}])
def test_who_asks_for_nothing_has_no_shaper(fields: dict[str, Any]) -> None:
    """Such a row costs a step nothing."""
    assert not Shaper.is_needed(SamplingParams(**fields))


@settings(deadline=None, max_examples=100)
@given(
    width=st.sampled_from([5, 64, 640, 1000, 3000]),
    k=st.sampled_from([1, 2, 5, 20]),
    kinds=st.sampled_from([3, 1000]),
    seed=st.integers(0, 2**32),
)
def test_the_largest_are_those_of_a_sort(width: int, k: int, kinds: int, seed: int) -> None:
    """Falling, ties in order of ids; where several equal the last, any of those may be named."""
    k = min(k, width)
    values = torch.randint(0, kinds, (3, width), generator=torch.Generator().manual_seed(seed)).float()
    values[0, : width - 2] = float("-inf")
    found, ids = largest(values, k)
    expected = values.sort(-1, descending=True).values[:, :k]
    assert found.tolist() == expected.tolist()
    assert values.gather(1, ids).tolist() == expected.tolist()
    for row, row_ids in zip(found.tolist(), ids.tolist(), strict=True):
        assert len(set(row_ids)) == k
        pairs = [(-value, token) for value, token in zip(row, row_ids, strict=True)]
        assert pairs == sorted(pairs)
