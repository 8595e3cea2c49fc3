"""Figures: percentiles, goals, summaries, and the ratios of two servers."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.bench.measure import Outcome, meets, parse_goals, percentile, spread, summarize
from triolet.api.bench.prompts import (
    WORDS,
    Ask,
    Dataset,
    Maker,
    PromptOptions,
    TextMaker,
    TokenMaker,
    WordMaker,
    draw_sessions,
)
from triolet.api.bench.rounds import ratio, ratios
from triolet.engine.core.errors import ConfigurationError

TIMES = st.lists(st.floats(0, 1e3), min_size=1, max_size=40)


@given(TIMES, st.sampled_from([0, 50, 90, 99, 100]))
def test_percentiles_equal_numpys(values: list[float], percent: int) -> None:
    """By linear interpolation between the nearest values."""
    assert percentile(sorted(values), percent) == pytest.approx(float(np.percentile(values, percent)))


@given(TIMES)
def test_a_spread_is_in_milliseconds(values: list[float]) -> None:
    """Mean, percentiles and maximum; without values all are NaN."""
    found = spread(values)
    assert found.mean == pytest.approx(float(np.mean(values)) * 1e3)
    assert (found.p50, found.p90, found.p99) == pytest.approx(tuple(np.percentile(values, [50, 90, 99]) * 1e3))
    assert found.max == max(values) * 1e3
    assert math.isnan(spread([]).p50)


def done(start: float, end: float, *, tokens: int = 11, prompt: int = 5, ttft: float = 0.1) -> Outcome:
    """A request that went well."""
    return Outcome(
        start_s=start, end_s=end, ttft_s=ttft, e2e_s=end - start, num_prompt_tokens=prompt, num_output_tokens=tokens
    )


def failed(start: float, end: float, error: str = "it broke") -> Outcome:
    """A request that didn't."""
    return Outcome(start_s=start, end_s=end, error=error)


def test_a_summary_counts_rates_over_the_time_of_all_its_rounds() -> None:
    """From the first start to the last end of each round; the time between rounds is nobody's."""
    summary = summarize([[done(0, 2), done(1, 3), failed(0, 4)], [done(100, 101)]])
    assert (summary.num_completed, summary.num_failed, summary.duration_s) == (3, 1, 5.0)
    assert (summary.output_tokens_per_s, summary.total_tokens_per_s) == (33 / 5, 48 / 5)
    assert summary.requests_per_s == 3 / 5
    assert summary.errors == {"it broke": 1}
    assert summary.e2e_ms.max == 2000
    assert summary.goodput_requests_per_s is None


def test_errors_are_counted_by_their_message() -> None:
    """The commonest first; nothing completed leaves NaN, not a crash."""
    summary = summarize([[failed(0, 1, "rare"), failed(0, 1, "common"), failed(0, 1, "common")]])
    assert list(summary.errors.items()) == [("common", 2), ("rare", 1)]
    assert math.isnan(summary.ttft_ms.p50)
    assert summary.output_tokens_per_s == 0
    assert math.isnan(summarize([[]]).requests_per_s)


def test_goodput_counts_the_requests_that_meet_every_goal() -> None:
    """Limits in milliseconds; a failed request meets none, and what has no value is met."""
    goals = parse_goals(["ttft:300", "tpot:150"])
    assert goals == {"ttft": 0.3, "tpot": 0.15}
    quick, slow_start, slow = done(0, 1), done(0, 1, ttft=0.4), done(0, 2)
    assert [meets(one, goals) for one in (quick, slow_start, slow, failed(0, 1))] == [True, False, False, False]
    assert meets(done(0, 1, tokens=1), {"tpot": 0.001, "itl": 0.001})
    assert summarize([[quick, slow_start, slow]], goals).goodput_requests_per_s == 1 / 2


@pytest.mark.parametrize("goal", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "speed:3", ""])
def test_a_goal_that_is_malformed_is_refused(goal: str) -> None:
    """The message names it, and what there is."""
    with pytest.raises(ConfigurationError) as caught:
        parse_goals(["ttft:300", goal])
    expected = f"--goodput takes NAME:MILLISECONDS, NAME one of ttft, tpot, itl, e2e; not {goal!r}."
    assert caught.value.message == expected


def test_a_ratio_is_the_median_over_rounds_and_its_range() -> None:
    """Rounds in which one side has no figure are left out."""
    found = ratio([2.0, 3.0, math.nan, 8.0, 1.0], [1.0, 2.0, 1.0, 2.0, 0.0])
    assert (found.median, found.low, found.high) == (2.0, 1.5, 4.0)
    assert ratio([1.0], [0.0]).median is None


def test_two_servers_are_compared_round_by_round_and_one_is_not() -> None:
    """Twice the tokens per second is a ratio of 2."""
    rounds = {"A": [[done(0, 1)], [done(9, 10)]], "B": [[done(2, 4)], [done(5, 7)]]}
    assert ratios(rounds)["output tok/s"].median == 2.0
    assert ratios(rounds)["E2E p50"].median == 0.5
    assert ratios({"A": rounds["A"]}) == {}


def options(dataset: Dataset, **fields: int | Path) -> PromptOptions:
    return PromptOptions(dataset=dataset, **{"input_len": 12, "output_len": 6, "prefix_len": 30, **fields})  # type: ignore[arg-type]


def draw_from(given: PromptOptions) -> object:
    return draw_sessions(given, WordMaker(), count=1, seed=0)


@pytest.mark.parametrize("maker", [TokenMaker(5000), WordMaker()])
@pytest.mark.parametrize("dataset", ["random", "shared-prefix", "conversation"])
def test_the_same_seed_gives_the_same_prompts_and_another_round_gives_others(dataset: Dataset, maker: Maker) -> None:
    """So that every server gets the same, and no round finds in a cache what the one before left."""
    first, again, other_round, other_seed = (
        draw_sessions(options(dataset), maker, count=5, seed=seed, round=round)
        for seed, round in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert first == again
    contents = [{ask.content for session in drawn for ask in session} for drawn in (first, other_round, other_seed)]
    assert not contents[0] & contents[1]
    assert not contents[0] & contents[2]
    assert len(first) == 5
    assert {ask.max_tokens for session in first for ask in session} == {6}


def test_token_ids_have_the_length_asked_for_and_stay_in_the_vocabulary() -> None:
    """Above the special tokens, below the vocabulary's size."""
    ids = TokenMaker(1500)(random.Random(0), 400)
    assert len(ids) == 400
    assert set(ids) <= set(range(750, 1500))
    assert set(TokenMaker(30_000)(random.Random(0), 400)) <= set(range(1000, 30_000))


def test_a_shared_prefix_is_shared_and_what_follows_is_not() -> None:
    """With several prefixes they take turns; texts are joined by a space."""
    drawn = draw_sessions(options("shared-prefix", num_prefixes=2), TokenMaker(5000), count=4, seed=0)
    contents = [session[0].content for session in drawn]
    assert {len(content) for content in contents} == {42}
    assert contents[0][:30] == contents[2][:30] != contents[1][:30] == contents[3][:30]
    assert len({content[30:] for content in contents}) == 4
    (text,) = draw_sessions(options("shared-prefix"), WordMaker(), count=1, seed=0)[0]
    assert isinstance(text.content, str)
    assert len(text.content.split()) == 42
    assert set(text.content.split()) <= set(WORDS)


def test_a_conversation_has_turns_of_text() -> None:
    """Token ids could not go with an answer between them."""
    (session,) = draw_sessions(options("conversation", turns=3), TokenMaker(5000), count=1, seed=0)
    assert len(session) == 3
    assert all(isinstance(ask.content, str) for ask in session)


def test_a_file_has_prompts_texts_ids_or_messages(tmp_path: Path) -> None:
    """Blank lines are skipped; more requests than lines go round again."""
    file = tmp_path / "prompts.jsonl"
    lines = ['{"prompt": "a", "max_tokens": 3}', "", '{"prompt": [1, 2]}', '{"messages": [{"role": "user"}]}']
    file.write_text("\n".join(lines) + "\n")
    drawn = draw_sessions(options("file", file=file), WordMaker(), count=6, seed=0)
    asks = [session[0] for session in drawn]
    assert asks[:3] == asks[3:]
    assert sorted(asks[:3], key=str) == sorted(
        [
            Ask(content="a", max_tokens=3),
            Ask(content=(1, 2), max_tokens=6),
            Ask(content=({"role": "user"},), max_tokens=6),
        ],
        key=str,
    )


FILES = [
    ('{"prompt": "a"}\n{"prompt": ""}', ", line 2: it needs a prompt, or messages."),
    ('{"prompt": "a", "messages": [{}]}', ", line 1: it needs a prompt, or messages."),
    ('{"prompt": "a", "max_tokens": 0}', ", line 1: max_tokens must be at least 1."),
    ('{"prompt": 3}', ", line 1: Expected `str | array | null`, got `int` - at `$.prompt`."),
    ('\n"text"', ", line 2: Expected `object`, got `str`."),
    ("{", ", line 1: Input data was truncated."),
    ("\n \n", " holds no prompt."),
]


@pytest.mark.parametrize(("content", "complaint"), FILES)
def test_a_file_that_cannot_be_used_is_refused_by_its_line(content: str, complaint: str, tmp_path: Path) -> None:
    """One line says where and what."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        draw_from(options("file", file=file))
    assert caught.value.message == f"--file {file}{complaint}"


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (
            lambda path: draw_sessions(options("file", file=path), WordMaker(), count=1, seed=0),
            "--file {}: No such file",
        ),
        (
            lambda path: draw_sessions(options("file"), WordMaker(), count=1, seed=0),
            "--dataset file needs --file PATH.",
        ),
        (lambda path: TextMaker(path), "--tokenizer {}: "),
    ],
)
def test_a_file_that_is_not_there_is_refused(draw: Callable[[Path], object], complaint: str, tmp_path: Path) -> None:
    """By its flag."""
    with pytest.raises(ConfigurationError) as caught:
        draw(tmp_path / "none")
    assert caught.value.message.startswith(complaint.format(tmp_path / "none"))


def test_text_is_cut_to_length_by_a_tokenizer(tmp_path: Path) -> None:
    """Where words are several tokens, there are fewer words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence, Split, Whitespace

    vocabulary = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = Sequence([Whitespace(), Split(pattern="", behavior="isolated")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = TextMaker(tmp_path)(random.Random(0), 60)
    assert len(tokenizer.encode(text).ids) == 60
