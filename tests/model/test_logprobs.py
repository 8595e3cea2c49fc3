"""Log-probabilities are transformers' log-softmax, in any batch, chunking and after a preemption."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.model.running import our_model, reference_model
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.logprobs import TokenLogprobs
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import RULED_OUT, Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel
from triolet.model.runner import ModelRunner

PROMPT = [5, 17, 99, 3, 42, 7, 7, 63, 21, 100, 2, 64, 64, 9, 11, 3]
Reports = dict[str, tuple[list[list[int]], list[list[TokenLogprobs]], list[TokenLogprobs]]]


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return reference_model("llama")


@pytest.fixture(scope="module")
def model(reference: PreTrainedModel) -> LlamaModel:
    return our_model(reference)


def run(
    model: LlamaModel,
    requests: dict[str, tuple[list[int], SamplingParams]],
    *,
    num_blocks: int = 64,
    budget: int = 64,
    depth: int = 1,
) -> tuple[Reports, Scheduler, list[str | None]]:
    """Through the scheduler and the runner; for each request its answers' tokens and reports, and its prompt's."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=4)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=budget), cache)
    runner = ModelRunner(model, kv=KVTensors(model.spec, num_blocks=num_blocks, block_size=4, dtype=model.dtype))
    reports: Reports = {}
    for name, (prompt, params) in requests.items():
        reports[name] = ([[] for _ in range(params.n)], [[] for _ in range(params.n)], [])
        tokens = tuple(map(TokenId, prompt))
        scheduler.submit(Request(id=RequestId(name), prompt_token_ids=tokens, params=params, seed=7))
    results, messages = [], []
    while scheduler.has_unfinished:
        while len(results) < depth and (plan := scheduler.plan(0.0)) is not None:
            results.append(runner.execute(plan))
        scheduler.commit(results.pop(0), 0.0)
        events = scheduler.take_events()
        for name, (start, entries) in events.prompt_logprobs:
            assert start == len(reports[name][2]) + 1
            assert not reports[name][0][0], "before the first token"
            reports[name][2].extend(entries)
        all_logprobs = events.logprobs or (None,) * len(events.requests)
        columns = (events.requests, events.token_ids, events.choices, all_logprobs)
        for name, token, choice, said in zip(*columns, strict=True):
            reports[name][0][choice].append(token)
            if said is not None:
                reports[name][1][choice].append(said)
        messages += [end.message for end in events.finished]
    scheduler.check()
    return reports, scheduler, messages


def check(reference: PreTrainedModel, entries: list[TokenLogprobs], tokens: list[int], start: int, top: int) -> None:
    """`entries` are for `tokens[start:]`."""
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
    assert [entry.token_id for entry in entries] == tokens[start:]
    for place, entry in enumerate(entries, start):
        row = expected[place - 1]
        assert entry.logprob == pytest.approx(float(row[tokens[place]]), abs=1e-4)
        assert entry.rank == 1 + int((row > row[tokens[place]]).sum())
        best = row.sort(descending=True)
        assert list(entry.top_token_ids) == best.indices[:top].tolist()
        assert list(entry.top_logprobs) == pytest.approx(best.values[:top].tolist(), abs=1e-4)


SHAPER: dict[str, Any] = {
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.3,
    "logit_bias": {4: 3.0, 9: -100},
    "bad_word_token_ids": [[7], [4, 4]],
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.01,
    "temperature": 0.8,
}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("num_blocks", "budget"), [(64, 64), (64, 9), (14, 16)])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, SHAPER])
def test_they_equal_transformers(
    reference: PreTrainedModel,
    model: LlamaModel,
    sampling: dict[str, Any],
    num_blocks: int,
    budget: int,
    depth: int,
) -> None:
    """To 1e-4: of the model's own logits, whatever penalties and masks then do; beside requests that ask for other
    numbers and for none; in chunks; where blocks are short and requests are preempted."""
    ask = {"max_tokens": 12, **sampling}
    requests = {
        "both": (PROMPT, SamplingParams(logprobs=3, prompt_logprobs=2, **ask)),
        "none": (PROMPT[2:], SamplingParams(**ask)),
        "tokens": (PROMPT[1:], SamplingParams(logprobs=0, n=2, **ask)),
        "prompt": (PROMPT, SamplingParams(prompt_logprobs=0, **ask)),
    }
    reports, scheduler, _ = run(model, requests, num_blocks=num_blocks, budget=budget, depth=depth)
    assert bool(scheduler.stats.num_preemptions) == (num_blocks == 14)
    tokens, said, of_prompt = reports["both"]
    check(reference, said[0], PROMPT + tokens[0], len(PROMPT), 3)
    check(reference, of_prompt, PROMPT, 1, 2)
    tokens, said, of_prompt = reports["tokens"]
    for choice in range(2):
        check(reference, said[choice], PROMPT[1:] + tokens[choice], len(PROMPT) - 1, 0)
    assert of_prompt == []
    check(reference, reports["prompt"][2], PROMPT, 1, 0)
    assert reports["prompt"][1] == [[]]
    assert reports["none"][1:] == ([[]], [])
    # Alone, each gives the same tokens: reporting changes nothing, and neither does preemption.
    for name, (prompt, params) in requests.items():
        alone, _, _ = run(model, {name: (prompt, params)})
        assert alone[name][0] == reports[name][0]


@pytest.mark.parametrize("masks", [{"allowed_token_ids": [3], "bad_word_token_ids": [[3]]}])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
def test_masks_that_leave_no_token_end_their_request_alone(
    model: LlamaModel, masks: dict[str, Any], temperature: float, n: int
) -> None:
    """The message says what did it; a neighbour is answered."""
    requests = {
        "bad": (PROMPT, SamplingParams(max_tokens=3, temperature=temperature, n=n, **masks)),
        "good": (PROMPT, SamplingParams(max_tokens=3)),
    }
    reports, _, messages = run(model, requests)
    assert RULED_OUT in messages
    assert len(reports["good"][0][0]) == 3
