"""The tokenizer actor: from a prompt to token ids, and back.

Imports trio. It needs no task and no queue of its own: it keeps no state, so the work is done in the task of the
request that wants it, and whatever ends that request ends the wait. A long prompt goes to a worker thread, so that no
stream stalls while it is tokenized; the limiter bounds those threads, also the ones whose request has left in the
meantime, and requests that wait for it are bounded by the queue (`Registry`).
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, assert_never

import trio

from .core.errors import InvalidRequest, RequestFailed, TrioletError
from .prompt import (
    ChatPrompt,
    InfillPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    check_token_ids,
    num_characters,
    prompt_param,
)
from .template_process import TemplateProcesses

log = logging.getLogger(__name__)

LONG_PROMPT_CHARACTERS = 4096
"""From here on a prompt is tokenized in a worker thread: some 2 ms of work, against some 0.1 ms for the way there."""

SLOW_S = 0.25
"""A short conversation that holds the event loop this long shows a slow template: from then on it gets a thread."""

WORKER_THREADS = 2
"""At most this many prompts are tokenized at a time: more would take cores from the device."""

LAST_WORDS = 24
"""Tokens."""

MAX_BAD_WORD_CHARACTERS = 8192
MAX_BAD_WORD_TOKENS = 1024
"""The last tokens of a text are compared with every bad word at every step."""

T = TypeVar("T")


class IncrementalDecoder(Protocol):
    """Text from tokens that come one by one; never half a character."""

    def push(self, ids: Sequence[int], /) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """What is left when no more tokens come."""


class ChatTokenizer(Protocol):
    """What the engine needs of a model's tokenizer. `encode` and `render` may be called from any thread."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def has_chat_template(self) -> bool: ...
    @property
    def chat_templates(self) -> Mapping[str, str]: ...
    @property
    def special_tokens(self) -> Mapping[str, Any]: ...
    @property
    def infill_token_ids(self) -> tuple[int, int, int] | None: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def incremental(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> IncrementalDecoder: ...


class TokenizerClient:
    """Tokenizes for whoever asks. Every fault in a prompt is a RequestError and ends that request alone."""

    def __init__(self, tokenizer: ChatTokenizer, *, vocab_size: int) -> None:
        """`vocab_size` is the model's: the tokenizer may know tokens that the model has no embedding for."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._limiter = trio.CapacityLimiter(WORKER_THREADS)
        self._processes = TemplateProcesses()
        self._is_slow = False

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def has_chat_template(self) -> bool:
        return self._tokenizer.has_chat_template

    @property
    def special_tokens(self) -> dict[str, str]:
        """Those that the tokenizer has one of each of, by transformers' names: bos_token, eos_token, …"""
        return {name: token for name, token in self._tokenizer.special_tokens.items() if isinstance(token, str)}

    def chat_template(self, *, for_tools: bool) -> str | None:
        """The source of the model's chat template that renders a conversation with tools, or without."""
        templates = self._tokenizer.chat_templates
        return (templates.get("tool_use") if for_tools else None) or templates.get("default")

    def mark(self, text: str) -> tuple[tuple[int, ...], bool]:
        """The tokens of a mark, and whether it is seen in a text without special tokens."""
        token_ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        return token_ids, self._tokenizer.decode(token_ids, skip_special_tokens=True).strip() == text

    def last_words(self, token_ids: Sequence[int]) -> str:
        """The end of a prompt as text, special tokens spelled out: long enough for any mark."""
        return b"".join(map(self.token_bytes, token_ids[-LAST_WORDS:])).decode(errors="replace")

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's token ids, each in the vocabulary; how many there are is not checked.

        Cancellable at any time: a worker thread under way is left to finish for nobody. A short prompt may be no
        checkpoint.
        Raises InvalidRequest, and RequestFailed where the tokenizer itself breaks.
        """
        if isinstance(prompt, ChatPrompt) and prompt.chat_template is not None:
            text = await self._processes.render(prompt, self._tokenizer.special_tokens)
            work = partial(self._encode_rendered, prompt, text)
            size = len(text)
        else:
            work = partial(self._encode, prompt)
            size = num_characters(prompt)
        if size < LONG_PROMPT_CHARACTERS and not self._is_slow:
            started_s = time.perf_counter()
            try:
                return _blame_the_request(work)
            finally:
                self._is_slow = isinstance(prompt, ChatPrompt) and time.perf_counter() - started_s > SLOW_S
        return await trio.to_thread.run_sync(_blame_the_request, work, abandon_on_cancel=True, limiter=self._limiter)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of whole sequences of tokens. Raises InvalidRequest for an id outside the vocabulary."""
        check_token_ids(tuple(token_ids), vocab_size=self.vocab_size, param="tokens")
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, inside a text: whole characters mostly, for some a part of one. May be called from
        any thread."""
        return self._tokenizer.token_bytes(token_id)

    def incremental(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for the answer to this prompt."""
        start = partial(self._tokenizer.incremental, prompt_token_ids, skip_special_tokens=skip_special_tokens)
        return _blame_the_request(start)

    def bad_word_token_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word at the front of a text and, where that is spelled with as many tokens and another
        first one, behind a space: vLLM's rule. Raises InvalidRequest for more than MAX_BAD_WORD_TOKENS in all."""
        if sum(map(len, words)) > MAX_BAD_WORD_CHARACTERS:  # before time is spent on them
            raise InvalidRequest(f"bad_words may have {MAX_BAD_WORD_CHARACTERS} characters in all.", param="bad_words")
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        found: list[tuple[int, ...]] = []
        for word in words:
            plain, spaced = (tuple(encode(prefix + word.lstrip())) for prefix in ("", " "))
            found.append(plain)
            if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
                found.append(spaced)
        if (num_tokens := sum(map(len, found))) > MAX_BAD_WORD_TOKENS:
            raise InvalidRequest(
                f"bad_words may have {MAX_BAD_WORD_TOKENS} tokens in all, these have {num_tokens}.", param="bad_words"
            )
        return tuple(found)

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Runs in any thread."""
        token_ids = tuple(self._tokenize(prompt))
        check_token_ids(token_ids, vocab_size=self._vocab_size, param=prompt_param(prompt))
        return token_ids if prompt.cut is None else prompt.cut.apply(token_ids)

    def _encode_rendered(self, prompt: ChatPrompt, text: str) -> tuple[int, ...]:
        """Runs in any thread."""
        token_ids = tuple(self._tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens))
        check_token_ids(token_ids, vocab_size=self._vocab_size, param="messages")
        return token_ids if prompt.cut is None else prompt.cut.apply(token_ids)

    def _tokenize(self, prompt: Prompt) -> Sequence[int]:
        tokenizer = self._tokenizer
        match prompt:
            case TokenPrompt():
                return prompt.token_ids
            case TextPrompt():
                return tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)
            case InfillPrompt():
                if tokenizer.infill_token_ids is None:
                    raise InvalidRequest("suffix: this model has no tokens for filling in a text.", param="suffix")
                parts = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt.text, prompt.suffix))
                (before, behind), (front, gap, end) = parts, tokenizer.infill_token_ids
                return [front, *before, gap, *behind, end]
            case ChatPrompt():
                if not tokenizer.has_chat_template:
                    raise InvalidRequest(
                        "The model has no chat template: send a prompt instead of messages.", param="messages"
                    )
                text = tokenizer.render(
                    prompt.messages, add_generation_prompt=prompt.add_generation_prompt, **prompt.variables
                )
                # The template writes the special tokens itself, mostly.
                return tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens)
            case _:
                assert_never(prompt)


def _blame_the_request(work: Callable[[], T]) -> T:
    """Run it; whatever it raises becomes this request's error, and nobody else's."""
    try:
        return work()
    except TrioletError:
        raise
    except Exception as error:
        # The error's text may quote the prompt, which is nobody's business at the default level.
        log.warning("a prompt could not be tokenized: %s", type(error).__name__)
        log.debug("why it could not be tokenized", exc_info=error)
        raise RequestFailed("The prompt could not be tokenized.") from error
