"""Prompts: the four forms in which one may come, and the checks that a prompt must pass before it is scheduled.

Pure: the standard library, attrs and the core's errors. A prompt's fault raises `InvalidRequest` with the field's name
as its `param` ("prompt" or "messages", mostly), and ends that request alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, assert_never, cast

import attrs

from .core.errors import InvalidRequest, PromptTooLong
from .core.params import SamplingParams


@attrs.frozen(kw_only=True)
class Cut:
    """A prompt that has more tokens than these loses the rest: its beginning (`left`), or its end (`right`)."""

    num_tokens: int
    side: Literal["left", "right"] = "left"

    def apply(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        surplus = max(0, len(token_ids) - self.num_tokens)
        return token_ids[surplus:] if self.side == "left" else token_ids[: len(token_ids) - surplus]


@attrs.frozen(kw_only=True)
class TextPrompt:
    """A text as it is."""

    text: str
    add_special_tokens: bool = True
    """Let the tokenizer add what it adds by default (a begin-of-text token, mostly)."""
    cut: Cut | None = None
    param: str = attrs.field(default="prompt", eq=False)
    """The request's field that it came in."""


@attrs.frozen(kw_only=True)
class InfillPrompt:
    """A text with a gap: what stands before it and behind it. Takes a model with the tokens for that."""

    text: str
    suffix: str
    cut: Cut | None = None


def _token_ids(value: Sequence[int]) -> tuple[int, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class TokenPrompt:
    """Tokens: nothing is added."""

    token_ids: tuple[int, ...] = attrs.field(converter=_token_ids)
    cut: Cut | None = None
    param: str = attrs.field(default="prompt", eq=False)
    """The request's field that it came in."""


def _messages(value: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple(value)


RESERVED_KWARGS = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "self")
)
"""Variables of a template that have a field of their own."""


def _check_kwargs(_: object, __: object, value: Mapping[str, Any]) -> None:
    for name in value:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or name in RESERVED_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {str(name)[:64]!r}: it is no name, or has a field of its own.",
                param="chat_template_kwargs",
            )


@attrs.frozen(kw_only=True)
class ChatPrompt:
    """A conversation, for the model's chat template to render."""

    messages: tuple[Mapping[str, Any], ...] = attrs.field(converter=_messages)
    add_generation_prompt: bool = True
    """End with the opening of the assistant's turn."""
    template_kwargs: Mapping[str, Any] = attrs.field(factory=dict, validator=_check_kwargs)
    """Further variables of the template. Raises InvalidRequest for a name that is not free."""
    chat_template: str | None = None
    """A template of its own, in place of the model's: rendered in another process, within limits."""
    continue_final_message: bool = False
    """End within the last message, so that the answer goes on with it. Not together with add_generation_prompt."""
    documents: tuple[Mapping[str, Any], ...] | None = None
    """For templates that know what to do with them."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    """Likewise: as OpenAI writes them, each with a `type` and a `function`."""
    add_special_tokens: bool = False
    """Let the tokenizer add what it adds by default, beside what the template writes."""
    cut: Cut | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """What rendering takes beside the messages and `add_generation_prompt`."""
        own: dict[str, Any] = dict(self.template_kwargs)
        if self.documents is not None:
            own["documents"] = list(self.documents)
        if self.tools is not None:
            own["tools"] = list(self.tools)
        if self.continue_final_message:
            own["continue_final_message"] = True
        return own


Prompt = TextPrompt | InfillPrompt | TokenPrompt | ChatPrompt


def as_prompt(prompt: Prompt | str | Sequence[int]) -> Prompt:
    """A str is a text, a sequence of ints is tokens. Anything else raises InvalidRequest."""
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return TextPrompt(text=prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
        return TokenPrompt(token_ids=cast(Sequence[int], prompt))
    raise InvalidRequest(
        f"A prompt is a text, a list of token ids or a conversation, not {type(prompt).__name__}.", param="prompt"
    )


def prompt_param(prompt: Prompt) -> str:
    """The request's field that the prompt came in, to be named in errors."""
    match prompt:
        case TextPrompt() | TokenPrompt():
            return prompt.param
        case InfillPrompt():
            return "prompt"
        case ChatPrompt():
            return "messages"
        case _:
            assert_never(prompt)


def num_characters(prompt: Prompt) -> int:
    """About how many characters tokenizing the prompt will look at."""
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case InfillPrompt():
            return len(prompt.text) + len(prompt.suffix)
        case TokenPrompt():
            return 0
        case ChatPrompt():
            values = (*prompt.messages, prompt.variables)
            return sum(len(text) for value in values for text in _texts(value))
        case _:
            assert_never(prompt)


CHARACTERS_PER_TOKEN = 4
"""In English prose, about. Other scripts have fewer."""


def estimate_num_tokens(prompt: Prompt) -> int:
    """About how many tokens it will have: known for tokens, guessed from the characters otherwise. At least 1."""
    if isinstance(prompt, TokenPrompt):
        return max(1, len(prompt.token_ids))
    return 1 + num_characters(prompt) // CHARACTERS_PER_TOKEN


def _texts(value: object) -> Iterator[str]:
    """Every string in a message, whatever its shape. A stack, not recursion: the client chooses the depth."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)


def check_token_ids(token_ids: tuple[int, ...], *, vocab_size: int, param: str) -> None:
    """Every id is an index into the vocabulary, or InvalidRequest names the first that is not."""
    if not token_ids or (set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return  # at the speed of C: a prompt may have a hundred thousand
    for position, token in enumerate(token_ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"Token ids must be integers from 0 to {vocab_size - 1}; the one at position {position} is {token!r}.",
                param=param,
            )


def check_length(num_tokens: int, *, max_model_len: int, param: str, answered: bool = True) -> None:
    """The prompt has a token and, where it is to be answered, leaves room for one, or InvalidRequest says which it
    misses."""
    if num_tokens == 0:
        raise InvalidRequest("The prompt is empty: it must have at least one token.", param=param)
    if not answered and num_tokens > max_model_len:
        raise PromptTooLong(f"The input has {num_tokens} tokens; the model takes at most {max_model_len}.", param=param)
    if not answered:
        return
    if num_tokens >= max_model_len:
        raise PromptTooLong(
            f"The prompt has {num_tokens} tokens; the model takes at most {max_model_len} in all, prompt and answer "
            f"together, so a prompt can have at most {max_model_len - 1}.",
            param=param,
        )


def check_ids(params: SamplingParams, *, vocab_size: int) -> None:
    """Every token that the parameters name is one of the model's, or InvalidRequest names the field."""
    named = {
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "logprob_token_ids": params.logprob_token_ids or (),
        "logit_bias": tuple(token for token, _ in params.logit_bias),
        "bad_words": tuple(token for word in params.bad_word_token_ids for token in word),
    }
    for param, token_ids in named.items():
        check_token_ids(token_ids, vocab_size=vocab_size, param=param)


def fit_params(
    params: SamplingParams, *, num_prompt_tokens: int, max_model_len: int, max_num_seqs: int
) -> SamplingParams:
    """The same parameters with `max_tokens` set: what the prompt leaves room for, or less where less was asked.

    Raises InvalidRequest for what this model and this engine cannot do.
    """
    if params.n > max_num_seqs:
        raise InvalidRequest(f"n must be at most {max_num_seqs} on this server, not {params.n}.", param="n")
    room = max_model_len - num_prompt_tokens
    if params.min_tokens > room:
        raise InvalidRequest(
            f"min_tokens ({params.min_tokens}) is more than the prompt leaves room for: {num_prompt_tokens} of the "
            f"model's {max_model_len} tokens are taken.",
            param="min_tokens",
        )
    if params.max_tokens is not None and params.max_tokens <= room:
        return params
    return attrs.evolve(params, max_tokens=room)
