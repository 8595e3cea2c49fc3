"""Reasoning on the device: its budget is kept, grammars begin behind it, and no schedule changes an answer."""

import attrs
import pytest

from tests.model.answering import run
from tests.model.running import our_model, reference_model
from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.thinking import Phase, Thinking
from triolet.model.grammar import Grammars, grammars_of
from triolet.model.llama import LlamaModel
from triolet.model.source import ModelSource
from triolet.model.tokenizer import ChatTokenizer

YES_OR_NO = GrammarSpec.choice(["yes", "no"])


@pytest.fixture(scope="module")
def grammars(builtin_source: ModelSource) -> Grammars:
    return grammars_of(builtin_source)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    """Random weights behind the built-in model's vocabulary."""
    shape = {"vocab_size": 49152, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return our_model(reference_model("llama", max_position_embeddings=1024, **shape))


def thinking(tokenizer: ChatTokenizer, budget: int | None, begins: Phase = "inside") -> Thinking:
    """Marks of several tokens: the built-in vocabulary knows none."""
    start, end = (tuple(tokenizer.encode(mark, add_special_tokens=False)) for mark in ("<think>", "</think>"))
    assert len(start) > 1
    return Thinking(
        start="<think>", end="</think>", start_token_ids=start, end_token_ids=end, budget=budget, begins=begins
    )


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_budget_is_kept(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, budget: int
) -> None:
    """After so many tokens the closing mark comes, and then the answer, free again."""
    asked = thinking(builtin_tokenizer, budget)
    params = SamplingParams(thinking=asked, max_tokens=30, n=3, ignore_eos=True)
    answers, _ = run(model, grammars, {"a": params})
    for tokens, reason in answers["a"]:
        assert reason is FinishReason.LENGTH
        assert tuple(tokens[budget : budget + len(asked.end_token_ids)]) == asked.end_token_ids
        assert len(tokens) == 30
        assert len(set(tokens)) > 10


def test_the_mark_comes_whatever_else_is_asked(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer
) -> None:
    """Masks, biases and penalties do not stand in its way."""
    asked = thinking(builtin_tokenizer, 3)
    first = asked.end_token_ids[0]
    params = SamplingParams(
        thinking=asked,
        max_tokens=12,
        allowed_token_ids=(50, 60, 70),
        logit_bias={first: -100},
        repetition_penalty=1.5,
        bad_word_token_ids=((first,),),
    )
    answers, _ = run(model, grammars, {"a": params})
    ((tokens, _),) = answers["a"]
    assert tuple(tokens[3 : 3 + len(asked.end_token_ids)]) == asked.end_token_ids
    assert set(tokens[:3] + tokens[3 + len(asked.end_token_ids) :]) <= {50, 60, 70}


@pytest.mark.parametrize("begins", ["inside", "front", "over"])
def test_a_grammar_begins_where_the_reasoning_ends(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, begins: Phase
) -> None:
    """Reasoning is free, but it may not end the answer; an answer that opens none is held to the grammar at once."""
    asked = thinking(builtin_tokenizer, 6, begins)
    params = SamplingParams(thinking=asked, grammar=YES_OR_NO, max_tokens=60, n=4)
    answers, _ = run(model, grammars, {"a": params})
    for tokens, reason in answers["a"]:
        text = builtin_tokenizer.decode(tokens)
        assert reason is FinishReason.STOP
        assert text.split("</think>")[-1] in ("yes", "no")
        assert ("</think>" in text) == (begins == "inside")


def test_an_answer_may_open_its_reasoning_in_front_of_a_grammar(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer
) -> None:
    """The mark's tokens may come where the grammar has none of them, one after the other."""
    asked = thinking(builtin_tokenizer, 2, "front")
    wanted = dict.fromkeys(asked.start_token_ids, 100.0)
    params = SamplingParams(thinking=asked, grammar=YES_OR_NO, max_tokens=60, logit_bias=wanted, temperature=0)
    answers, _ = run(model, grammars, {"a": params})
    ((tokens, reason),) = answers["a"]
    text = builtin_tokenizer.decode(tokens)
    assert reason is FinishReason.STOP
    assert text.startswith("<think>")
    assert text.split("</think>")[-1] in ("yes", "no")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("num_blocks", "budget"), [(512, 256), (512, 8), (12, 64)])
def test_chunks_preemptions_and_forks_change_no_answer(
    model: LlamaModel, grammars: Grammars, builtin_tokenizer: ChatTokenizer, num_blocks: int, budget: int, depth: int
) -> None:
    """Each answer is the one it gives alone: the count of its reasoning goes on where it was."""
    asked = thinking(builtin_tokenizer, 25)
    requests = {
        "free": SamplingParams(thinking=asked, max_tokens=60, ignore_eos=True),
        "held": SamplingParams(thinking=asked, grammar=YES_OR_NO, max_tokens=60, n=2),
        "seeded": SamplingParams(thinking=attrs.evolve(asked, budget=4), max_tokens=50, ignore_eos=True, seed=5),
        "plain": SamplingParams(max_tokens=60, ignore_eos=True),
    }
    answers, scheduler = run(model, grammars, requests, num_blocks=num_blocks, budget=budget, depth=depth)
    assert bool(scheduler.stats.num_preemptions) == (num_blocks == 12)
    for name, params in requests.items():
        alone, _ = run(model, grammars, {name: params})
        assert alone[name] == answers[name]
    for tokens, _ in answers["free"] + answers["held"]:
        assert "</think>" in builtin_tokenizer.decode(tokens)
