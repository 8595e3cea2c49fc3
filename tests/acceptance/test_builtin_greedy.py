"""The built-in model in float32, the whole engine against transformers, each with its own reader of the same file."""

from collections.abc import Sequence

import pytest
from transformers import LlamaForCausalLM

from tests.model.running import greedy_tokens
from triolet.engine.config import EngineConfig
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.open import open_engine
from triolet.model.source import resolve_source
from triolet.model.tokenizer import load_tokenizer

from .asking import Answer, ask_alone, ask_together, check_pool_is_free
from .builtin import read_builtin
from .models import Case, logits_along

COUNT = 10
CHUNK = 16
LEAST_GAP = 0.01
"""The logits of two float32 programs differ by some 1e-4 here: 30 layers, and values up to 30."""
BLOCK_BYTES = 2 * 30 * 3 * 64 * 16 * 4
CHATS = (
    "What is the capital of Italy?",
    "Name three primary colours.",
    "Write a limerick about a cat who could not stop counting.",
    "How many legs does an ant have?",
    "Übersetze „Guten Morgen“ ins Englische.",
    "为什么天空是蓝色的？",
    "Ответь одним словом: столица России?",
    "Is 91 a prime number? Explain in one sentence.",
    "Give me a recipe with rice, beans and an onion. I have one pot, no oven and half an hour.",
    "🙂🙃🙂 what do these mean?",
)
TEXTS = (
    "Once upon a time, in a village by the sea,",
    "def quicksort(items):\n    if len(items) < 2:\n        return",
    "1, 2, 4, 8, 16,",
    '{"name": "Grace Hopper", "born": 1906, "field": "',
    "Dear Sir or Madam,\n\nI am writing to",
    "To be, or not to be, that is",
    "<html>\n<head>\n<title>Home</title>\n</head>\n<body>\n",
    "The",
    "La plume de ma tante est sur le bureau de mon oncle. Le livre de mon oncle est sur",
    "a b c d e f g h i j k l m n o p a b c d e f g h i j k l m n o p a b c d",
)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Twenty prompts with what `generate` says to each, up to where it first hesitated between two tokens."""
    source = resolve_source(None)
    model = read_builtin(source)
    tokenizer = load_tokenizer(source)
    chats = [tokenizer.render([{"role": "user", "content": chat}]) for chat in CHATS]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in (*chats, *TEXTS)]
    return [_case(model, prompt) for prompt in prompts]


def _case(model: LlamaForCausalLM, prompt: list[int]) -> Case:
    answer = greedy_tokens(model, prompt, COUNT)
    best = logits_along(model, prompt, answer).topk(2).values
    clear = (best[:, 0] - best[:, 1] > LEAST_GAP).tolist()
    answer = answer[: clear.index(False)] if False in clear else answer
    return Case(prompt, answer, SamplingParams(temperature=0, max_tokens=len(answer), ignore_eos=True))


def config(*, num_blocks: int = 400, **fields: object) -> EngineConfig:
    settings = {"dtype": "float32", "attention_backend": "torch", "max_model_len": 128, "max_num_seqs": 32}
    return EngineConfig(**{**settings, "kv_cache_memory": num_blocks * BLOCK_BYTES, **fields})  # type: ignore[arg-type]


def check(answers: Sequence[Answer], cases: Sequence[Case], engine: Engine) -> None:
    assert [answer.token_ids for answer in answers] == [case.answer for case in cases]
    check_pool_is_free(engine)


def test_the_reference_is_one(cases: list[Case]) -> None:
    """Twenty prompts, and answers that are long enough to say something."""
    assert len(cases) == 20
    assert min(len(case.answer) for case in cases) >= 3
    assert sum(len(case.answer) for case in cases) > 20 * COUNT * 3 // 4


async def test_alone_and_in_a_mixed_batch(cases: list[Case]) -> None:
    """One request at a time, then all at once; nothing is reused."""
    async with open_engine(config(enable_prefix_caching=False)) as engine:
        check(await ask_alone(engine, cases), cases, engine)
        check(await ask_together(engine, cases), cases, engine)


async def test_in_chunks_of_16_and_after_a_prefix_hit(cases: list[Case]) -> None:
    """Each prompt in chunks among others' tokens; then again, its full blocks found in the cache."""
    async with open_engine(config(long_prefill_token_threshold=CHUNK)) as engine:
        check(await ask_together(engine, cases), cases, engine)
        check(answers := await ask_together(engine, cases), cases, engine)
    assert [answer.last.num_cached_tokens for answer in answers] == [
        (len(case.prompt) - 1) // 16 * 16 for case in cases
    ]


async def test_after_forced_preemption(cases: list[Case]) -> None:
    """A pool for little more than one request of full length."""
    async with open_engine(config(num_blocks=10)) as engine:
        assert engine.stats().num_blocks == 10
        check(await ask_together(engine, cases), cases, engine)
        assert engine.stats().preemptions > 0
