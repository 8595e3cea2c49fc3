"""Where a grammar leaves no choice an answer goes on by itself: the same tokens, in fewer steps."""

import json
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.model.answering import Answers, run
from tests.model.device_steps import DeviceDriver
from tests.model.test_grammar import light, patterns, random_model, schemas
from tests.model.test_grammar import model as model
from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.scheduler import Scheduler
from triolet.model.device_step.runner import DeviceRunner
from triolet.model.grammar import Grammars, grammars_of
from triolet.model.llama import LlamaModel
from triolet.model.source import ModelSource

PERSON = {
    "type": "object",
    "properties": {
        "family_name": {"type": "string", "maxLength": 4},
        "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 1999},
        "is_registered": {"type": "boolean"},
        "preferred_language": {"enum": ["English", "Portuguese"]},
    },
    "required": ["family_name", "year_of_birth", "is_registered", "preferred_language"],
    "additionalProperties": False,
}
SPEC = GrammarSpec.json_schema(PERSON, any_whitespace=False)


@pytest.fixture(scope="module")
def grammars(builtin_source: ModelSource) -> Grammars:
    return grammars_of(builtin_source)


def both(
    model: LlamaModel, grammars: Grammars, requests: dict[str, SamplingParams], **how: Any
) -> tuple[Answers, Scheduler, Scheduler]:
    """The answers, which must be the same with jumps and without, and the schedulers of both runs."""
    answers, jumping = run(model, grammars, requests, **how)
    grammars.jump_forward = False
    try:
        stepwise, plain = run(model, grammars, requests, **how)
    finally:
        grammars.jump_forward = True
    assert answers == stepwise
    assert plain.stats.forced_tokens == 0
    assert jumping.stats.generation_tokens == plain.stats.generation_tokens
    return answers, jumping, plain


def test_each_forced_token_saves_a_step(model: LlamaModel, grammars: Grammars) -> None:
    """One answer alone: so many steps fewer as its grammar forced tokens; a schema with long names has some."""
    requests = {"a": SamplingParams(temperature=0, max_tokens=200, grammar=SPEC)}
    answers, jumping, plain = both(model, grammars, requests)
    assert jumping.stats.forced_tokens >= 5
    assert jumping.stats.num_steps == plain.stats.num_steps - jumping.stats.forced_tokens
    assert jumping.stats.num_scheduled_tokens <= plain.stats.num_scheduled_tokens
    assert len(answers["a"][0][0]) > 30


@light
@given(
    spec=st.one_of(
        schemas.map(lambda schema: GrammarSpec.json_schema(json.dumps(schema), any_whitespace=False)),
        patterns.map(GrammarSpec.regex),
        st.lists(st.sampled_from(["positive", "negative", "neither of them"]), min_size=1, unique=True).map(
            GrammarSpec.choice
        ),
    ),
    how=st.fixed_dictionaries(
        {
            "depth": st.integers(1, 2),
            "num_blocks": st.sampled_from([512, 40]),
            "budget": st.sampled_from([16, 20, 256]),
            "seed": st.integers(0, 9),
        }
    ),
    fields=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0, 1.0]),
            "n": st.integers(1, 3),
            "presence_penalty": st.sampled_from([0, 1.5]),
            "repetition_penalty": st.sampled_from([1, 1.3]),
            "max_tokens": st.sampled_from([3, 40]),
        }
    ),
)
def test_s8_an_answer_is_the_same_with_jumps(
    model: LlamaModel, grammars: Grammars, spec: GrammarSpec, how: dict[str, Any], fields: dict[str, Any]
) -> None:
    """S8: with n, penalties, chunks, preemption, prefix hits, beside an answer without a grammar, at any depth."""
    note(spec.source)
    grammars.compile(spec)
    requests = {
        "first": SamplingParams(grammar=spec, **fields),
        "again": SamplingParams(grammar=spec, **fields),
        "plain": SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    }
    both(model, grammars, requests, **how)


def device_runner(model: LlamaModel, num_blocks: int) -> DeviceRunner:
    """The runner of a device that is fed ahead, its graphs recorded on the CPU."""
    return DeviceDriver(
        model, num_blocks=num_blocks, block_size=8, max_num_seqs=16, max_num_tokens=256, max_model_len=512
    ).device_runner


@pytest.mark.parametrize(("num_blocks", "budget"), [(512, 256), (24, 20)])
def test_a_device_that_is_fed_ahead_jumps_too(grammars: Grammars, num_blocks: int, budget: int) -> None:
    """The same answers, from tokens that stand on the device."""
    model = random_model(pack=False)
    requests = {
        "json": SamplingParams(temperature=0, max_tokens=120, grammar=SPEC, presence_penalty=0.5),
        "two": SamplingParams(max_tokens=120, grammar=SPEC, n=2),
        "plain": SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    }
    how: dict[str, Any] = {"num_blocks": num_blocks, "budget": budget}
    answers, jumping, _ = both(model, grammars, requests, make_runner=device_runner, **how)
    assert jumping.stats.forced_tokens
    assert answers == run(model, grammars, requests, **how)[0]


@pytest.mark.parametrize("fields", [{"logprobs": 1}, {"min_tokens": 5}])
def test_tokens_that_must_be_looked_at_are_sampled(
    model: LlamaModel, grammars: Grammars, fields: dict[str, Any]
) -> None:
    """Where log-probabilities are reported, and where an end must be kept back."""
    requests = {"a": SamplingParams(temperature=0, max_tokens=60, grammar=SPEC, **fields)}
    _, jumping, _ = both(model, grammars, requests)
    assert jumping.stats.forced_tokens == 0


def test_a_forced_token_that_is_ruled_out_is_never_taken(model: LlamaModel, grammars: Grammars) -> None:
    """Bad words or allowed tokens against the only token that the grammar leaves: an error, as without jumps."""
    answers, _, _ = both(model, grammars, {"a": SamplingParams(temperature=0, max_tokens=200, grammar=SPEC)})
    said = answers["a"][0][0]
    matcher = grammars.matcher(SPEC)
    at = 0
    while matcher.only() != said[at]:
        matcher.take(said[at])
        at += 1
    for masks in ({"bad_word_token_ids": [[said[at]]]}, {"allowed_token_ids": sorted(set(said) - {said[at]})}):
        params = SamplingParams(temperature=0, max_tokens=200, grammar=SPEC, **masks)  # type: ignore[arg-type]
        found, _, _ = both(model, grammars, {"a": params})
        assert found["a"][0] == (said[:at], FinishReason.ERROR)
