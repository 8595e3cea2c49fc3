"""What sampling parameters take, and how what they do not take is refused."""

from typing import Any

import pytest

from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.grammar import MAX_SOURCE_CHARACTERS, GrammarSpec
from triolet.engine.core.params import LogprobsLimit, SamplingParams
from triolet.engine.core.repetition import RepetitionDetection, RepetitionDetector


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("presence_penalty", 2.1, "presence_penalty must be a number from -2 to 2, not 2.1."),
        ("frequency_penalty", float("nan"), "frequency_penalty must be a number from -2 to 2, not nan."),
        ("repetition_penalty", 0, "repetition_penalty must be a number from 1e-06 to 1e+06, not 0."),
        ("repetition_penalty", 1e-37, "repetition_penalty must be a number from 1e-06 to 1e+06, not 1e-37."),
        ("repetition_penalty", 1e37, "repetition_penalty must be a number from 1e-06 to 1e+06, not 1e+37."),
        ("logit_bias", {"a": 1}, "logit_bias must be a map from token ids to numbers, not 'a'."),
        ("logit_bias", {-1: 1}, "logit_bias must be a map from token ids of at least 0 to numbers, not {-1: 1}."),
        ("logit_bias", {1: "x"}, "logit_bias must be a map from token ids of at least 0 to numbers, not {1: 'x'}."),
        ("allowed_token_ids", [], "allowed_token_ids must be a list of token ids that is not empty, not ()."),
        ("allowed_token_ids", [-1], "allowed_token_ids must be a list of token ids of at least 0, not -1."),
        ("bad_words", [" "], "bad_words must be a list of strings, none of them empty or blank, not ' '."),
        ("bad_words", ["x"] * 129, "bad_words takes at most 128 words, not 129."),
        ("logprobs", -2, "logprobs must be an integer of at least -1 (-1 means all), not -2."),
        ("logprobs", True, "logprobs must be an integer of at least -1 (-1 means all), not True."),
        ("logprob_token_ids", [1], "logprob_token_ids is only allowed together with logprobs."),
        ("skip_special_tokens", 1, "skip_special_tokens must be true or false, not 1."),
        ("include_stop_str_in_output", None, "include_stop_str_in_output must be true or false, not None."),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any, said: str) -> None:
    """The message says the field, what it takes and what it was given."""
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert (caught.value.param, caught.value.message) == (field, said)


@pytest.mark.parametrize(
    ("most", "asked", "found"), [(20, 20, 20), (20, 0, 0), (-1, -1, 50), (-1, 70, 50), (50, -1, 50), (60, 55, 55)]
)
def test_log_probabilities_are_reported_up_to_a_limit(most: int, asked: int, found: int) -> None:
    """--max-logprobs; -1 means the whole vocabulary, of 50 here, on both sides."""
    params = LogprobsLimit(most, 50).apply(SamplingParams(logprobs=asked, prompt_logprobs=asked))
    assert (params.logprobs, params.prompt_logprobs) == (found, found)


@pytest.mark.parametrize(("most", "asked"), [(20, 21), (20, -1), (0, 1), (49, -1)])
def test_more_log_probabilities_than_the_limit_are_refused(most: int, asked: int) -> None:
    """By name, with the range."""
    for field in ("logprobs", "prompt_logprobs"):
        with pytest.raises(InvalidRequest) as caught:
            LogprobsLimit(most, 50).apply(SamplingParams(**{field: asked}))
        assert caught.value.message == f"{field} must be an integer from 0 to {most}, not {asked}."
        assert caught.value.param == field


def test_named_tokens_have_a_bound() -> None:
    """1024 of them."""
    with pytest.raises(InvalidRequest, match="logprob_token_ids takes at most 1024 token ids, not 1025"):
        SamplingParams(logprobs=0, logprob_token_ids=range(1025))


def test_a_bias_is_kept_within_100_and_takes_the_keys_of_json() -> None:
    """As OpenAI's: string keys, values clamped; in order of ids."""
    params = SamplingParams(logit_bias={"7": -1000, "3": 1, "5": 100.5})
    assert params.logit_bias == ((3, 1.0), (5, 100.0), (7, -100.0))
    assert SamplingParams(logit_bias=None) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [("repetition_penalty", 2), ("presence_penalty", 1), ("bad_words", "x"), ("grammar", GrammarSpec.json_object())],
)
def test_beam_search_takes_no_field_that_changes_or_reports_draws(field: str, value: Any) -> None:
    """Refused rather than left out of account."""
    with pytest.raises(InvalidRequest, match=f"{field} cannot be combined with use_beam_search"):
        SamplingParams(use_beam_search=True, n=2, **{field: value})


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((0, 1, 2), "max_pattern_size must be from 1 to 1024, not 0"),
        ((1025, 1, 2), "max_pattern_size must be from 1 to 1024, not 1025"),
        ((4, 5, 2), "min_pattern_size must be from 1 to max_pattern_size, not 5"),
        ((4, 1, 1), "min_count must be at least 2, not 1"),
        ((4, 1, "2"), "min_count must be an integer, not '2'"),
    ],
)
def test_repetition_detection_is_refused_by_part(sizes: tuple[Any, Any, Any], said: str) -> None:
    """The field, and which of its three numbers."""
    with pytest.raises(InvalidRequest, match=said) as caught:
        RepetitionDetection(max_pattern_size=sizes[0], min_pattern_size=sizes[1], min_count=sizes[2])
    assert caught.value.param == "repetition_detection"


@pytest.mark.parametrize(
    ("tokens", "at"),
    [
        ([1, 2, 3, 4, 5, 6, 7], None),
        ([5, 1, 2, 1, 2, 1, 2, 9], 7),
        ([1, 1, 1], None),
        ([1, 1, 1, 1, 1, 1], 6),
        ([1, 2, 3, 1, 2, 3, 1, 2, 4], None),
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 9),
        ([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], None),
    ],
)
def test_a_pattern_that_comes_three_times_is_found_with_its_last_token(tokens: list[Any], at: int | None) -> None:
    """Patterns of 2 or 3 tokens, three times at the end; the prompt is no part of it."""
    detector = RepetitionDetector(RepetitionDetection(max_pattern_size=3, min_pattern_size=2, min_count=3))
    known: list[Any] = [1, 2, 1, 2]
    found = None
    for number, token in enumerate(tokens, 1):
        known.append(token)
        if detector.push(known, 4):
            found = number
            break
    assert found == at


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GrammarSpec.json_schema("{", param="response_format"), "response_format is not JSON"),
        (lambda: GrammarSpec.json_schema({"a": {1}}), "response_format is not JSON"),
        (lambda: GrammarSpec.regex(""), "A regular expression must be a string that is not empty"),
        (lambda: GrammarSpec.ebnf("x" * (MAX_SOURCE_CHARACTERS + 1)), "structured_outputs may have 262144 characters"),
        (lambda: GrammarSpec.choice([]), "choice must be a list of 1 to 1024 strings"),
        (lambda: GrammarSpec.choice("abc"), "choice must be a list of 1 to 1024 strings"),
        (lambda: GrammarSpec.choice(["a", ""]), "Each choice must be a string that is not empty"),
        (lambda: GrammarSpec.json_schema("[" * 100_000), "response_format is nested too deeply"),
    ],
)
def test_a_constraint_that_is_none_is_refused(make: Any, said: str) -> None:
    """Before anything is compiled."""
    with pytest.raises(InvalidRequest, match=said):
        make()


def test_equal_constraints_are_equal_however_they_were_written() -> None:
    """So that they are compiled once."""
    spec = GrammarSpec.json_schema({"type": "object"}, param="a")
    assert spec == GrammarSpec.json_schema('{ "type" : "object" }', param="b")
    assert hash(spec) == hash(GrammarSpec.json_schema({"type": "object"}))
