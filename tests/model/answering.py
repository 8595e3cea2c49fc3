"""Requests through the scheduler and the runner, without an engine around them."""

from collections.abc import Callable
from typing import Any

from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager
from triolet.model.grammar import Grammars
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel
from triolet.model.runner import ModelRunner
from triolet.model.tokenizer import ChatTokenizer

ENDS = (0, 2)
Answers = dict[str, list[tuple[list[int], FinishReason]]]


def model_runner(model: LlamaModel, num_blocks: int) -> ModelRunner:
    """Of a cache with so many blocks of 8 tokens."""
    return ModelRunner(model, kv=KVTensors(model.spec, num_blocks=num_blocks, block_size=8, dtype=model.dtype))


def run(
    model: LlamaModel,
    grammars: Grammars,
    requests: dict[str, SamplingParams],
    *,
    num_blocks: int = 512,
    budget: int = 256,
    depth: int = 1,
    seed: int = 0,
    make_runner: Callable[[LlamaModel, int], Any] = model_runner,
) -> tuple[Answers, Scheduler]:
    """Through the scheduler and the runner; each request's answers and how they ended."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=8)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=budget), cache)
    runner = make_runner(model, num_blocks)
    runner.use_grammars(grammars)
    tokens: dict[str, list[list[int]]] = {}
    for name, params in requests.items():
        tokens[name] = [[] for _ in range(params.n)]
        prompt = tuple(map(TokenId, (50, 60, 70, 80, 90, 100, 110, 120, 130, 140)))
        scheduler.submit(
            Request(
                id=RequestId(name),
                prompt_token_ids=prompt,
                params=params,
                seed=seed,
                end_token_ids=tuple(map(TokenId, ENDS)),
            )
        )
    ends: dict[tuple[str, int], FinishReason] = {}
    results = []
    while scheduler.has_unfinished:
        while len(results) < depth and (plan := scheduler.plan(0.0)) is not None:
            results.append(runner.execute(plan))
        scheduler.commit(results.pop(0), 0.0)
        events = scheduler.take_events()
        for name, token, choice in zip(events.requests, events.token_ids, events.choices, strict=True):
            tokens[name][choice].append(token)
        ends |= {(end.request, end.choice): end.reason for end in events.finished}
    scheduler.check()
    return {
        name: [(said, ends[RequestId(name), choice]) for choice, said in enumerate(answers)]
        for name, answers in tokens.items()
    }, scheduler


def follows(grammars: Grammars, tokenizer: ChatTokenizer, spec: GrammarSpec, text: str) -> bool:
    """Whether the grammar takes the whole text, and nothing is missing then."""
    matcher = grammars.matcher(spec)
    for token in tokenizer.encode(text, add_special_tokens=False):
        allowed = matcher.allowed()
        if allowed is not None and not allowed[token]:
            return False
        matcher.take(token)
    last = matcher.allowed()
    return last is None or bool(last[ENDS[1]])
