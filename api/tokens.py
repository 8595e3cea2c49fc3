"""Tokens and their log-probabilities as clients read them: chats have one shape, completions another."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.core.logprobs import TokenLogprobs
from ..engine.tokenizer import IncrementalDecoder

if TYPE_CHECKING:
    from ..engine.tokenizer import TokenizerClient

LOWEST = -9999.0
"""JSON has no infinity."""

Pair = tuple[int, TokenLogprobs | None]
"""A token, and how likely it was; a prompt's first token has no likelihood."""


class Spelling:
    """How tokens are spelled for one request."""

    def __init__(self, tokenizer: "TokenizerClient", *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token_id: int) -> str:
        """A part of a character is spelled U+FFFD: its bytes say what it is."""
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self.text(token_id)

    def decoder(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> IncrementalDecoder:
        """Gives each token's share of the text that follows a prompt."""
        return self._tokenizer.incremental(prompt_token_ids, skip_special_tokens=skip_special_tokens)

    # Chats.

    def chat(self, entries: Iterable[TokenLogprobs], num_top: int) -> dict[str, Any]:
        """The `logprobs` of a choice of a chat."""
        return {"content": [self._chat_entry(entry, num_top) for entry in entries]}

    def _chat_entry(self, entry: TokenLogprobs, num_top: int) -> dict[str, Any]:
        tops = zip(entry.top_token_ids[:num_top], entry.top_logprobs, strict=False)
        return {
            **self._chat_token(entry.token_id, entry.logprob),
            "top_logprobs": [self._chat_token(token_id, logprob) for token_id, logprob in tops],
        }

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        own = list(self._tokenizer.token_bytes(token_id))
        return {"token": self.name(token_id), "logprob": max(logprob, LOWEST), "bytes": own}

    # Completions.

    def completion(self, pairs: Sequence[Pair], offsets: Sequence[int], num_top: int) -> dict[str, Any]:
        """The `logprobs` of a choice of a completion: the token itself is among its rivals, whatever its rank."""
        return {
            "text_offset": list(offsets),
            "token_logprobs": [None if entry is None else max(entry.logprob, LOWEST) for _, entry in pairs],
            "tokens": [self.name(token_id) for token_id, _ in pairs],
            "top_logprobs": [None if entry is None else self._rivals(entry, num_top) for _, entry in pairs],
        }

    def _rivals(self, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
        rivals: dict[str, float] = {}
        for token_id, logprob in zip(entry.top_token_ids[:num_top], entry.top_logprobs, strict=False):
            rivals.setdefault(self.name(token_id), max(logprob, LOWEST))
        rivals.setdefault(self.name(entry.token_id), max(entry.logprob, LOWEST))
        return rivals

    # Prompts.

    def prompt(self, entries: Iterable[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: for each token of the prompt its rivals and itself by their ids."""
        return [None if entry is None else self._by_id(entry) for entry in entries]

    def _by_id(self, entry: TokenLogprobs) -> dict[str, Any]:
        tops = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        found = [(token_id, logprob, place) for place, (token_id, logprob) in enumerate(tops, 1)]
        found.append((entry.token_id, entry.logprob, entry.rank))
        return {
            str(token_id): {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": self.text(token_id)}
            for token_id, logprob, rank in found
        }


def offsets_of(token_ids: Iterable[int], decoder: IncrementalDecoder, start: int) -> tuple[list[int], int]:
    """Where each token's text begins, counted in characters from `start`, and where the last one's ends."""
    offsets: list[int] = []
    for token_id in token_ids:
        offsets.append(start)
        start += len(decoder.push((token_id,)))
    return offsets, start
