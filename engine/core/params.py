"""What a request asks for: `SamplingParams`, checked once, where it enters."""

import math
from collections.abc import Iterable

import attrs

from .errors import InvalidRequest

MAX_STOP_STRINGS = 4


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


def _check_token_ids(_: object, __: object, value: tuple[int, ...]) -> None:
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise _refuse("stop_token_ids", token, "a list of token ids of at least 0")


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

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
