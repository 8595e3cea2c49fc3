"""`LLM.beam_search` on real weights: the answers, scores and log-probabilities of transformers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.params import SamplingParams
from triolet.engine.llm import LLM

from .models import RandomModel, logits_along, random_model

PROMPTS = [[5, 17, 99, 3, 64, 8], [40, 41, 42], list(range(100, 140))]
END = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return random_model(tmp_path_factory.mktemp("beams") / "random", seed=3)


@pytest.fixture(scope="module")
def llm(model: RandomModel) -> Iterator[LLM]:
    with LLM(
        str(model.folder), progress=False, dtype="float32", attention_backend="torch", kv_cache_memory=8 << 20
    ) as llm:
        yield llm


def searched(model: RandomModel, prompt: list[int], width: int, **more: Any) -> list[tuple[list[int], float]]:
    """What transformers finds, best first; the end token taken off."""
    tokens = torch.tensor([prompt])
    found = model.reference.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=8,
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        early_stopping=False,
        eos_token_id=END,
        pad_token_id=-1,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        given = row[len(prompt) :]
        cut = next((place for place, token in enumerate(given) if token in (END, -1)), len(given))
        answers.append((given[:cut], score))
    return answers


@pytest.mark.parametrize("length_penalty", [0.5, 1.0])
@pytest.mark.parametrize("width", [2, 4])
def test_the_answers_are_those_of_transformers(llm: LLM, model: RandomModel, width: int, length_penalty: float) -> None:
    """All prompts at once, best first, with their scores."""
    outputs = llm.beam_search(PROMPTS, beam_width=width, max_tokens=8, length_penalty=length_penalty, progress=False)
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        expected = searched(model, prompt, width, length_penalty=length_penalty)
        assert [list(choice.token_ids) for choice in output.choices] == [tokens for tokens, _ in expected]
        assert [choice.score for choice in output.choices] == pytest.approx([s for _, s in expected], rel=1e-4)


def test_each_token_of_a_beam_has_its_log_probabilities(llm: LLM, model: RandomModel) -> None:
    """Those of the model's own softmax, and so many rivals as were asked for; the prompt's too."""
    (output,) = llm.beam_search(PROMPTS[0], beam_width=3, max_tokens=6, logprobs=12, prompt_logprobs=1, progress=False)
    for choice in output.choices:
        assert len(choice.logprobs) == len(choice.token_ids)
        expected = logits_along(model.reference, PROMPTS[0], list(choice.token_ids)).log_softmax(-1)
        for entry, token, row in zip(choice.logprobs, choice.token_ids, expected, strict=True):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert entry.rank == 1 + int((row > row[token]).sum())
            values, ids = row.topk(12)
            assert entry.top_token_ids == tuple(ids.tolist())
            assert entry.top_logprobs == pytest.approx(values.tolist(), abs=1e-4)
    assert len(output.prompt_logprobs) == len(PROMPTS[0])


def test_what_does_not_go_with_beams_is_refused(llm: LLM) -> None:
    """By name."""
    with pytest.raises(InvalidRequest, match="presence_penalty cannot be combined with use_beam_search"):
        llm.beam_search(PROMPTS, presence_penalty=1.0, progress=False)


def test_named_tokens_are_reported_beside_each(llm: LLM, model: RandomModel) -> None:
    """logprob_token_ids, in place of the most likely ones, also beside a request that names none."""
    wanted = [7, 100, 7, 3]
    named = SamplingParams(temperature=0, max_tokens=4, logprobs=0, logprob_token_ids=wanted, ignore_eos=True)
    plain = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    outputs = llm.generate([PROMPTS[0], PROMPTS[0]], [named, plain], progress=False)
    token_ids = list(outputs[0].token_ids)
    expected = logits_along(model.reference, PROMPTS[0], token_ids).log_softmax(-1)
    for entry, other, token, row in zip(
        outputs[0].choices[0].logprobs, outputs[1].choices[0].logprobs, token_ids, expected, strict=True
    ):
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert sorted(entry.top_token_ids) == [3, 7, 100]
        assert entry.top_logprobs == pytest.approx([float(row[i]) for i in entry.top_token_ids], abs=1e-4)
        assert list(entry.top_logprobs) == sorted(entry.top_logprobs, reverse=True)
        assert other.top_token_ids == tuple(row.topk(2).indices.tolist())
    with pytest.raises(InvalidRequest, match="Token ids must be integers from 0 to"):
        llm.generate(PROMPTS[0], SamplingParams(logprobs=0, logprob_token_ids=[10**6]), progress=False)


def test_the_whole_vocabulary_can_be_reported(model: RandomModel) -> None:
    """With --max-logprobs -1."""
    fields: dict[str, Any] = {"dtype": "float32", "attention_backend": "torch", "kv_cache_memory": 8 << 20}
    with LLM(str(model.folder), progress=False, max_logprobs=-1, **fields) as llm:
        params = SamplingParams(temperature=0, max_tokens=2, logprobs=-1, ignore_eos=True)
        (output,) = llm.generate(PROMPTS[0], params, progress=False)
        vocab_size = model.reference.config.vocab_size
        for entry in output.choices[0].logprobs:
            assert sorted(entry.top_token_ids) == list(range(vocab_size))
