"""What is asked: the datasets `random`, `shared-prefix`, `conversation` and `file`, each drawn from a seed alone.

A prompt is token ids where the server takes them, which have exactly the length asked for; else text: cut to length by
a tokenizer, or, without one, short common words, which are one token each in most vocabularies. The same seed gives
every server the same prompts.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs
import msgspec

from ...engine.core.errors import ConfigurationError

Dataset = Literal["random", "shared-prefix", "conversation", "file"]
Endpoint = Literal["completions", "chat"]
Message = Mapping[str, Any]
Content = str | tuple[int, ...] | tuple[Message, ...]
"""A text, token ids, or the messages of a chat."""

_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also well many must before back see through way where get much go down good
life
"""
WORDS = tuple(_TEXT.split())

FIRST_TOKEN_ID = 1000
"""Below it many vocabularies have special tokens and single bytes."""


@attrs.frozen(kw_only=True)
class Ask:
    """One request: what follows the conversation so far, and how long the answer is."""

    content: Content
    max_tokens: int


Session = tuple[Ask, ...]
"""Requests that follow one another, each with what was said before in front of it."""


class Maker(Protocol):
    """Makes content of a length."""

    def __call__(self, rng: random.Random, num_tokens: int) -> "str | tuple[int, ...]": ...


@attrs.frozen
class TokenMaker:
    """Token ids from FIRST_TOKEN_ID up to a vocabulary's size."""

    vocab_size: int

    def __call__(self, rng: random.Random, num_tokens: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(min(FIRST_TOKEN_ID, self.vocab_size // 2), self.vocab_size), k=num_tokens))


class WordMaker:
    """Words, each counted as one token."""

    def __call__(self, rng: random.Random, num_tokens: int) -> str:
        return " ".join(rng.choices(WORDS, k=num_tokens))


class TextMaker:
    """Text that a tokenizer turns into so many tokens, give or take one where the text was cut."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises the bare class
            raise ConfigurationError(f"--tokenizer {path}: {error}.") from None

    def __call__(self, rng: random.Random, num_tokens: int) -> str:
        text = " ".join(rng.choices(WORDS, k=num_tokens))
        ends = [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        return text[: ends[num_tokens - 1]] if len(ends) > num_tokens else text


@attrs.frozen(kw_only=True)
class PromptOptions:
    """What the prompts are like."""

    dataset: Dataset = "random"
    input_len: int
    output_len: int
    prefix_len: int = 0
    num_prefixes: int = 1
    turns: int = 4
    file: Path | None = None


def draw_sessions(options: PromptOptions, make: Maker, *, count: int, seed: int | str, round: int = 0) -> list[Session]:
    """`count` sessions. Rounds share nothing: what a server kept of one does not help it in the next.

    Raises ConfigurationError for a file that cannot be used.
    """
    rng = random.Random(f"{seed}:{round}")
    length = options.output_len
    match options.dataset:
        case "random":
            return [(Ask(content=make(rng, options.input_len), max_tokens=length),) for _ in range(count)]
        case "shared-prefix":
            prefixes = [make(rng, options.prefix_len) for _ in range(options.num_prefixes)]
            return [
                (Ask(content=joined(prefixes[index % len(prefixes)], make(rng, options.input_len)), max_tokens=length),)
                for index in range(count)
            ]
        case "conversation":
            words = make if isinstance(make, TextMaker) else WordMaker()  # an answer's text comes between two turns
            return [
                tuple(Ask(content=words(rng, options.input_len), max_tokens=length) for _ in range(options.turns))
                for _ in range(count)
            ]
        case "file":
            if options.file is None:
                raise ConfigurationError("--dataset file needs --file PATH.")
            asks = list(read_file(options.file, default_max_tokens=length))
            rng.shuffle(asks)
            return [(asks[index % len(asks)],) for index in range(count)]


def joined(prefix: "str | tuple[int, ...]", own: "str | tuple[int, ...]") -> "str | tuple[int, ...]":
    """A prefix and what follows it."""
    if isinstance(prefix, str) and isinstance(own, str):
        return f"{prefix} {own}"
    assert isinstance(prefix, tuple)
    assert isinstance(own, tuple)
    return prefix + own


def read_file(path: Path, *, default_max_tokens: int) -> Iterator[Ask]:
    """The lines of a JSONL file: objects with `prompt` (text or token ids) or `messages`, and maybe `max_tokens`.

    Raises ConfigurationError that names the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"--file {path}: {error.strerror}.") from None
    if not any(line.strip() for line in lines):
        raise ConfigurationError(f"--file {path} holds no prompt.")
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _ask(msgspec.json.decode(line, type=_Line), default_max_tokens)
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                raise ConfigurationError(f"--file {path}, line {number}: {error}.") from None


class _Line(msgspec.Struct):
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None


def _ask(line: _Line, default_max_tokens: int) -> Ask:
    content: Sequence[Any] | None = line.prompt or line.messages
    if not content or (line.prompt and line.messages):
        raise ValueError("it needs a prompt, or messages")
    if line.max_tokens is not None and line.max_tokens < 1:
        raise ValueError("max_tokens must be at least 1")
    return Ask(
        content=content if isinstance(content, str) else tuple(content),
        max_tokens=line.max_tokens or default_max_tokens,
    )
