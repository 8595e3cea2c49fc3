"""What a request asks for: `SamplingParams`, checked once, where it enters."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .errors import InvalidRequest
from .grammar import GrammarSpec
from .repetition import RepetitionDetection
from .thinking import Thinking

MAX_STOP_STRINGS = 4
MAX_LOGPROBS = 20
"""Unless the engine is told otherwise (--max-logprobs)."""
MAX_LOGPROB_TOKENS = 1024
MAX_BAD_WORDS = 128
MAX_LOGIT_BIAS = 100.0


def _refuse(param: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{param} must be {allowed}, not {value!r}.", param=param)


def _number(low: float, high: float, allowed: str, *, above_low: bool = False):  # type: ignore[no-untyped-def]
    def check(_: object, attribute: "attrs.Attribute[float]", value: object) -> None:
        name = attribute.name
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _refuse(name, value, allowed)
        if not low <= value <= high or (above_low and value == low):
            raise _refuse(name, value, allowed)

    return check


def _integer(low: int, allowed: str, *, high: int = 2**63 - 1, optional: bool = False):  # type: ignore[no-untyped-def]
    def check(_: object, attribute: "attrs.Attribute[int | None]", value: object) -> None:
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _refuse(attribute.name, value, allowed)

    return check


def _strings(value: str | Iterable[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _check_stop(_: object, __: object, value: tuple[str, ...]) -> None:
    if len(value) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(value)}.", param="stop")
    for text in value:
        if not isinstance(text, str) or not text:
            raise _refuse("stop", text, "one or several strings, none of them empty")


def _check_token_ids(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    name = attribute.name
    if value is None and attribute.default is None:
        return
    if not isinstance(value, tuple) or (not value and attribute.default is None):
        raise _refuse(name, value, "a list of token ids that is not empty")
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise _refuse(name, token, "a list of token ids of at least 0")


def _optional_tuple(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)


def _tuples(value: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each) for each in value)


def _bias(
    value: Mapping[int, float] | Mapping[str, float] | Iterable[tuple[int, float]] | None,
) -> tuple[tuple[int, float], ...]:
    """Pairs in order of ids, each value brought into ±100. JSON's keys are strings."""
    if value is None:
        return ()
    pairs: dict[int, float] = {}
    for key, bias in value.items() if isinstance(value, Mapping) else value:
        try:
            token = int(key)
        except (TypeError, ValueError):
            raise _refuse("logit_bias", key, "a map from token ids to numbers") from None
        if token < 0 or isinstance(bias, bool) or not isinstance(bias, int | float) or math.isnan(bias):
            raise _refuse("logit_bias", {key: bias}, "a map from token ids of at least 0 to numbers")
        pairs[token] = min(max(float(bias), -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS)
    return tuple(sorted(pairs.items()))


def _check_bad_words(_: object, __: object, value: tuple[str, ...]) -> None:
    if len(value) > MAX_BAD_WORDS:
        raise InvalidRequest(f"bad_words takes at most {MAX_BAD_WORDS} words, not {len(value)}.", param="bad_words")
    for word in value:
        if not isinstance(word, str) or not word.strip():
            raise _refuse("bad_words", word, "a list of strings, none of them empty or blank")


def _check_flag(_: object, attribute: "attrs.Attribute[bool]", value: object) -> None:
    if not isinstance(value, bool):
        raise _refuse(attribute.name, value, "true or false")


_LOGPROBS = _integer(-1, "an integer of at least -1 (-1 means all)", optional=True)
_PENALTY = _number(-2, 2, "a number from -2 to 2")


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How to choose the tokens of one request, and when to stop.

    The names, defaults and limits are vLLM's. A value out of range raises `InvalidRequest` naming the field.
    """

    n: int = attrs.field(default=1, validator=_integer(1, "an integer from 1 to 128", high=128))
    """How many answers to draw; they share the blocks of the prompt."""
    max_tokens: int | None = attrs.field(default=None, validator=_integer(1, "an integer of at least 1", optional=True))
    """Most tokens to generate; None means up to the model's length."""
    min_tokens: int = attrs.field(default=0, validator=_integer(0, "an integer of at least 0"))
    """No end-of-sequence or stop token is sampled before this many tokens."""
    temperature: float = attrs.field(default=1.0, validator=_number(0, 2, "a number from 0 to 2"))
    """0 is greedy: the most likely token, ties to the lowest id."""
    top_p: float = attrs.field(default=1.0, validator=_number(0, 1, "a number above 0, at most 1", above_low=True))
    top_k: int = attrs.field(default=0, validator=_integer(-1, "an integer of at least -1 (-1 and 0 mean all)"))
    min_p: float = attrs.field(default=0.0, validator=_number(0, 1, "a number from 0 to 1"))
    seed: int | None = attrs.field(
        default=None, validator=_integer(-(2**63), "a 64-bit integer", high=2**63 - 1, optional=True)
    )
    """The draw for a token depends on (seed, position) alone; None lets the engine choose."""
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings, validator=_check_stop)
    """Texts that end the answer; they are not part of it."""
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=tuple, validator=_check_token_ids)
    """Tokens that end the answer, beside the model's own end tokens; they are not part of its text."""
    presence_penalty: float = attrs.field(default=0.0, validator=_PENALTY)
    """Taken off the logit of every token that the answer has."""
    frequency_penalty: float = attrs.field(default=0.0, validator=_PENALTY)
    """Taken off the logit of a token as often as the answer has it."""
    repetition_penalty: float = attrs.field(default=1.0, validator=_number(1e-6, 1e6, "a number from 1e-06 to 1e+06"))
    """Divides positive and multiplies negative logits of tokens that the prompt or the answer has."""
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_bias)
    """Given as a map from token id to what is added to its logit, at most 100 up or down; kept as pairs."""
    allowed_token_ids: tuple[int, ...] | None = attrs.field(
        default=None, converter=_optional_tuple, validator=_check_token_ids
    )
    """No other token is sampled (the model's end tokens neither, unless listed)."""
    bad_words: tuple[str, ...] = attrs.field(default=(), converter=_strings, validator=_check_bad_words)
    """Texts that are not generated: the last token of each, where the ones before it have just come, is ruled out."""
    bad_word_token_ids: tuple[tuple[int, ...], ...] = attrs.field(default=(), converter=_tuples)
    """The same as sequences of tokens; the engine adds those of `bad_words`."""
    logprobs: int | None = attrs.field(default=None, validator=_LOGPROBS)
    """How many of the most likely tokens to report beside each token, with log-probabilities; None: report nothing. -1:
    all of the vocabulary. The engine has a limit (`LogprobsLimit`)."""
    logprob_token_ids: tuple[int, ...] | None = attrs.field(
        default=None, converter=_optional_tuple, validator=_check_token_ids
    )
    """Report these tokens beside each, in place of the most likely ones; `logprobs` says only that it is wanted."""
    prompt_logprobs: int | None = attrs.field(default=None, validator=_LOGPROBS)
    """The same for the prompt's tokens. The whole prompt is computed for it: a cached beginning is not used."""
    repetition_detection: RepetitionDetection | None = None
    """End an answer that goes round in circles, with the finish reason `repetition`."""
    grammar: GrammarSpec | None = None
    """What form the answer must have. It ends when it is complete: `ignore_eos` and `min_tokens` give way."""
    include_stop_str_in_output: bool = attrs.field(default=False, validator=_check_flag)
    """Show the stop string, or the text of the stop token, that ended the answer."""
    skip_special_tokens: bool = attrs.field(default=True, validator=_check_flag)
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = attrs.field(default=True, validator=_check_flag)
    """Accepted for vLLM's sake: no decoder here puts spaces between special tokens."""
    thinking: Thinking | None = None
    """How the answer thinks: a grammar holds from where it has done so on, and its budget is kept."""
    use_beam_search: bool = False
    """Find the n most likely answers instead of drawing n; all of them come at the end."""
    length_penalty: float = attrs.field(default=1.0, validator=_number(-10, 10, "a number from -10 to 10"))
    """With beam search: answers are ranked by log-probability / length ** length_penalty."""
    ignore_eos: bool = False
    """Go on past the model's own end tokens (stop_token_ids still end the answer)."""

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens}).", param="min_tokens"
            )
        if self.logprob_token_ids is not None:
            self._check_logprob_token_ids(self.logprob_token_ids)
        if self.use_beam_search:
            self._check_beams()

    def _check_logprob_token_ids(self, token_ids: tuple[int, ...]) -> None:
        if self.logprobs is None:
            raise InvalidRequest("logprob_token_ids is only allowed together with logprobs.", param="logprob_token_ids")
        if len(token_ids) > MAX_LOGPROB_TOKENS:
            raise InvalidRequest(
                f"logprob_token_ids takes at most {MAX_LOGPROB_TOKENS} token ids, not {len(token_ids)}.",
                param="logprob_token_ids",
            )

    def _check_beams(self) -> None:
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != _DEFAULTS[name]:
                raise InvalidRequest(f"{name} cannot be combined with use_beam_search.", param=name)

    @property
    def masking_param(self) -> str | None:
        """The field to name where the masks together leave no token."""
        if self.allowed_token_ids is not None:
            return "allowed_token_ids"
        if self.bad_words or self.bad_word_token_ids:
            return "bad_words"
        return None if self.grammar is None else self.grammar.param

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Tokens that are there already make their logits smaller or larger."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


@attrs.frozen
class LogprobsLimit:
    """How many rivals of a token an engine reports."""

    most: int = MAX_LOGPROBS
    """-1: all."""
    vocab_size: int | None = None
    """None: not known, and nobody may ask for all."""

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, -1 as a number. Raises InvalidRequest."""
        changes: dict[str, Any] = {}
        for param in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, param)
            if asked is None or 0 <= asked <= self.most:
                continue
            if self.vocab_size is None or -1 < self.most < (self.vocab_size if asked == -1 else asked):
                raise _refuse(param, asked, f"an integer from 0 to {self.most}")
            changes[param] = self.vocab_size if asked == -1 else min(asked, self.vocab_size)
        return attrs.evolve(params, **changes) if changes else params


_NOT_WITH_BEAMS = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "bad_word_token_ids",
    "logprob_token_ids",
    "repetition_detection",
    "grammar",
    "thinking",
)
_DEFAULTS = {field.name: field.default for field in attrs.fields(SamplingParams)}
