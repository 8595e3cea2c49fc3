"""Several answers to one prompt, drawn or searched for: the scheduler's forks carried out by the real runner."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.model.running import our_model, reference_model
from triolet.engine.core.events import FinishReason
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import choice_seed
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel
from triolet.model.runner import ModelRunner

PROMPT = [5, 17, 99, 3, 42, 7, 7, 63, 21]
Answers = list[tuple[list[int], FinishReason, float | None]]


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return reference_model("llama")


@pytest.fixture(scope="module")
def model(reference: PreTrainedModel) -> LlamaModel:
    return our_model(reference)


def ask(
    model: LlamaModel,
    params: SamplingParams,
    *,
    seed: int = 0,
    ends: tuple[int, ...] = (),
    num_blocks: int = 64,
    budget: int = 32,
    depth: int = 1,
    others: int = 0,
) -> Answers:
    """Run one request beside `others` of the same kind through scheduler and runner; its answers in order of choice."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=4)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=budget), cache)
    kv = KVTensors(model.spec, num_blocks=num_blocks, block_size=4, dtype=model.dtype)
    runner = ModelRunner(model, kv=kv)
    for number in range(others + 1):
        prompt = PROMPT if number == 0 else PROMPT[number:]
        scheduler.submit(
            Request(
                id=RequestId(str(number)),
                prompt_token_ids=tuple(map(TokenId, prompt)),
                params=params,
                seed=seed,
                end_token_ids=tuple(map(TokenId, ends)),
            )
        )
    tokens: list[list[int]] = [[] for _ in range(params.n)]
    answers: Answers = []
    results = []
    while scheduler.has_unfinished:
        while len(results) < depth and (plan := scheduler.plan(0.0)) is not None:
            results.append(runner.execute(plan))
        scheduler.commit(results.pop(0), 0.0)
        events = scheduler.take_events()
        for request, token, choice in zip(events.requests, events.token_ids, events.choices, strict=True):
            if request == "0":
                tokens[choice].append(token)
        ended = sorted((end for end in events.finished if end.request == "0"), key=lambda end: end.choice)
        answers += [(tokens[end.choice], end.reason, end.score) for end in ended]
    scheduler.check()
    assert cache.num_free_blocks == num_blocks
    return answers


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [64, 9])
def test_each_of_n_answers_is_the_one_its_seed_gives_alone(model: LlamaModel, depth: int, num_blocks: int) -> None:
    """Three answers share the prompt's blocks, also where the pool is so small that some are preempted."""
    params = SamplingParams(n=3, max_tokens=12, temperature=1.2, ignore_eos=True)
    together = ask(model, params, seed=7, depth=depth, num_blocks=num_blocks)
    single = SamplingParams(max_tokens=12, temperature=1.2, ignore_eos=True)
    alone = [ask(model, single, seed=choice_seed(7, choice))[0] for choice in range(3)]
    assert together == alone
    assert len({tuple(tokens) for tokens, _, _ in together}) == 3


def searched(
    reference: PreTrainedModel, *, num_beams: int, max_tokens: int, ends: tuple[int, ...], length_penalty: float
) -> list[tuple[list[int], float]]:
    """What transformers' beam search finds, best first; end tokens taken off."""
    prompt = torch.tensor([PROMPT])
    found = reference.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_tokens,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        do_sample=False,
        length_penalty=length_penalty,
        early_stopping=False,
        eos_token_id=list(ends) or None,
        pad_token_id=-1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = row[len(PROMPT) :]
        cut = next((place for place, token in enumerate(tokens) if token in ends or token < 0), len(tokens))
        answers.append((tokens[:cut], score))
    return answers


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("ends", [(), (64,), (12, 90, 64)])
@pytest.mark.parametrize("num_beams", [2, 5])
def test_beam_search_finds_what_that_of_transformers_finds(
    reference: PreTrainedModel, model: LlamaModel, num_beams: int, ends: tuple[int, ...], length_penalty: float
) -> None:
    """The same answers with the same scores, in the same order, beside other searches in the batch."""
    params = SamplingParams(n=num_beams, max_tokens=10, use_beam_search=True, length_penalty=length_penalty)
    found = ask(model, params, ends=ends, others=2)
    expected = searched(reference, num_beams=num_beams, max_tokens=10, ends=ends, length_penalty=length_penalty)
    assert [tokens for tokens, _, _ in found] == [tokens for tokens, _ in expected]
    assert [score for _, _, score in found] == pytest.approx([score for _, score in expected], rel=1e-4)


def test_a_search_gives_the_same_where_its_beams_are_preempted(model: LlamaModel) -> None:
    """A pool that three searches cannot share makes beams wait, and changes nothing they find."""
    params = SamplingParams(n=3, max_tokens=10, use_beam_search=True)
    crowded = ask(model, params, num_blocks=16, others=2)
    assert [tokens for tokens, _, _ in crowded] == [tokens for tokens, _, _ in ask(model, params)]
