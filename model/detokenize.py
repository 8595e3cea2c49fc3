"""Turns tokens into text as they come, never half a character.

Imports tokenizers for its types alone. What a token adds to a text depends on little: on whether it is the first, and,
for bytes, on the bytes around it. So nothing is decoded twice: each token's share is looked up once per tokenizer, and
a push costs a dictionary look-up and a few bytes for each token, however long the text.

The law: `push`ed texts and `flush` joined equal the whole decoded at once, after the prompt, however the tokens were
cut into pushes. One exception: a sentencepiece tokenizer whose byte tokens (`<0xE4>`) break off *after* whole
characters in the same run. Decoded at once, every byte of such a run becomes U+FFFD, also the characters before the
break; here these have been shown already and stay.
"""

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class IncrementalDecoder(ABC):
    """The text of one answer. Belongs to one task; not safe to share."""

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; bytes of an unfinished character are kept for later (at most three)."""

    @abstractmethod
    def flush(self) -> str:
        """What was kept: U+FFFD for a character that was never finished. Nothing may be pushed after."""


class Detokenizer:
    """Makes the decoders of one tokenizer, which share what a token's text is. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        steps = _steps(tokenizer)
        kinds = [str(step.get("type")) for step in steps]
        self._byte_level = kinds == ["ByteLevel"]
        # These decode token by token, but for the first token and for runs of byte tokens.
        self._piecewise = bool(kinds) and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
        self.has_byte_tokens = "ByteFallback" in kinds
        self.first_is_special = "Metaspace" in kinds
        """The first token of a text loses its leading space."""
        self.stripped = tuple((s["content"], s["start"]) for s in steps if s.get("type") == "Strip")
        """Characters taken off the front of a text: (which, at most how many)."""
        self._special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
        self._pieces: dict[tuple[int, bool], bytes | str | None] = {}
        self.whole: tuple[dict[int, str], dict[int, str]] = ({}, {})
        """With bytes, for each way with special tokens: the text of tokens that are whole characters."""
        self._anchor: int | None = None

    def start(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> IncrementalDecoder:
        """A decoder for what follows the prompt."""
        if self._byte_level:
            return _ByteLevel(self, prompt_ids, skip_special_tokens)
        if self._piecewise:
            return _Pieces(self, prompt_ids, skip_special_tokens)
        return _Windowed(self, prompt_ids, skip_special_tokens)

    def visible(self, token_id: int, skip_special_tokens: bool) -> str | None:
        """The token as the vocabulary spells it; None when it adds nothing (unknown, or special and skipped)."""
        token = self.tokenizer.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        return None if token is None or (skip_special_tokens and token in self._special) else token

    def piece(self, token_id: int, skip_special_tokens: bool) -> bytes | str | None:
        """What the token adds to a text that has begun: bytes of characters, or text; None when nothing."""
        key = (token_id, skip_special_tokens)
        if key not in self._pieces:
            token = self.visible(token_id, skip_special_tokens)
            if token is None:
                piece: bytes | str | None = None
            elif self._byte_level:
                piece = _bytes_of(token)
            elif self.has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
                piece = bytes.fromhex(match[1])
            else:
                piece = self.after([self.anchor], [token_id])
            self._pieces[key] = piece
        return self._pieces[key]

    def after(self, before: list[int], token_ids: list[int]) -> str:
        """What `token_ids` add behind `before`."""
        known = self.tokenizer.decode(before, skip_special_tokens=False)
        return str(self.tokenizer.decode(before + token_ids, skip_special_tokens=False)[len(known) :])

    def first(self, token_id: int) -> str:
        """What the token says at the front of a text."""
        return str(self.tokenizer.decode([token_id], skip_special_tokens=False))

    @property
    def anchor(self) -> int:
        """Some token that is plain text: behind it, any token is not the first of a text, nor in a run of bytes."""
        if self._anchor is None:
            for token_id in range(self.tokenizer.get_vocab_size()):
                token = self.tokenizer.id_to_token(token_id)
                if token and token.isalnum() and token.isascii():
                    self._anchor = token_id
                    break
            else:
                self._anchor = 0
        return self._anchor


class _ByteLevel(IncrementalDecoder):
    """Every token is bytes, and the text is their UTF-8; what isn't UTF-8 becomes U+FFFD, as in the whole."""

    def __init__(self, table: Detokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._table = table
        self._skip = skip_special_tokens
        self._whole = table.whole[skip_special_tokens]
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8.decode(self._tail(prompt_ids))
        self._is_between = self._utf8.getstate()[0] == b""  # characters: nothing is held

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes, three or a few more: a character that it leaves unfinished is finished here."""
        tail = b""
        for token_id in reversed(prompt_ids):
            piece = self._table.piece(token_id, self._skip)
            tail = (piece if isinstance(piece, bytes) else b"") + tail
            if len(tail) >= 3:
                break
        return tail

    def push(self, token_ids: Sequence[int]) -> str:
        was_between = self._is_between
        if was_between and len(token_ids) == 1 and (known := self._whole.get(token_ids[0])) is not None:
            return known
        pieces = (self._table.piece(token_id, self._skip) for token_id in token_ids)
        text = self._utf8.decode(b"".join(piece for piece in pieces if isinstance(piece, bytes)))
        self._is_between = self._utf8.getstate()[0] == b""
        if was_between and self._is_between and len(token_ids) == 1:
            self._whole[token_ids[0]] = text
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Pieces(IncrementalDecoder):
    """Tokens are text; some may be bytes, of which a run is UTF-8 or else U+FFFD for each byte."""

    def __init__(self, table: Detokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._table = table
        self._skip = skip_special_tokens
        self._held = b""  # an unfinished character
        self._broken = False  # the run of bytes is not UTF-8: each of its bytes is U+FFFD from here on
        self._begun = False
        for token_id in reversed(prompt_ids):
            piece = table.piece(token_id, skip_special_tokens)
            if piece is None:
                continue
            self._begun = True
            if not isinstance(piece, bytes) or len(self._held) == 3:
                break
            self._held = piece + self._held
        self._held = _unfinished(self._held)
        self._to_strip = [] if self._begun else [list(strip) for strip in table.stripped]

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._add(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._strip(self._end_run())

    def _add(self, token_id: int) -> str:
        piece = self._table.piece(token_id, self._skip)
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            text = self._add_byte(piece)
        elif self._table.first_is_special and not self._begun:
            text = self._table.first(token_id)
        else:
            text = self._end_run() + piece
        self._begun = True
        return self._strip(text)

    def _add_byte(self, byte: bytes) -> str:
        self._held += byte
        if self._broken or (_unfinished(self._held) != self._held and not _is_utf8(self._held)):
            text, self._held, self._broken = _REPLACEMENT * len(self._held), b"", True
            return text
        if not _is_utf8(self._held):
            return ""
        text, self._held = self._held.decode(), b""
        return text

    def _end_run(self) -> str:
        text, self._held, self._broken = _REPLACEMENT * len(self._held), b"", False
        return text

    def _strip(self, text: str) -> str:
        """Take the leading characters off that are still to be taken; the first other one ends it."""
        for strip in self._to_strip:
            content, left = strip
            while left and text.startswith(content):
                text, left = text[len(content) :], left - 1
            strip[1] = left if not text else 0
        return text


class _Windowed(IncrementalDecoder):
    """Any other decoder: a token's text is what it adds behind the one before it."""

    def __init__(self, table: Detokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._table = table
        self._skip = skip_special_tokens
        seen = (token_id for token_id in reversed(prompt_ids) if self._is_visible(token_id))
        self._before = [token_id for token_id, _ in zip(seen, range(1), strict=False)]

    def _is_visible(self, token_id: int) -> bool:
        return self._table.visible(token_id, self._skip) is not None

    def push(self, token_ids: Sequence[int]) -> str:
        new = [token_id for token_id in token_ids if self._is_visible(token_id)]
        if not new:
            return ""
        text = self._table.after(self._before, new)
        self._before = new[-1:]
        return text

    def flush(self) -> str:
        return ""


def _steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The decoder's steps, each with its `type`."""
    if tokenizer.decoder is None:
        return []
    step: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return list(step["decoders"]) if step.get("type") == "Sequence" else [step]


def _byte_alphabet() -> dict[str, int]:
    """How byte-level BPE spells bytes: printable ones stand for themselves, the rest are U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    """The bytes that a byte-level token stands for; an added token may hold other characters, and stands for itself."""
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unfinished(data: bytes) -> bytes:
    """The bytes at the end that may still become a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]
