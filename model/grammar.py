"""Grammars: a constraint compiled against a model's vocabulary, and the matcher that follows one answer through it.

Imports xgrammar, inside its functions: it takes a second, and most engines never need it. A matcher knows nothing but
the tokens of its answer, so a sequence that joins the batch again, or was forked, gets a new one that is told them.
"""

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ..engine.core.errors import InvalidRequest
from ..engine.core.grammar import MARKS, GrammarSpec
from .json_strings import guarded_schema, guarded_tag
from .source import ModelSource

MAX_KEPT = 256
MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Compiled grammars that are kept for the next request; those in use live on."""
MAX_GRAMMAR_BYTES = 64 * 1024 * 1024
MAX_WHITESPACE = 20
"""Characters between two parts of a JSON text, where a request does not forbid them: enough for five levels at four
spaces. Without a limit a small model can go on with line breaks until its tokens are used up."""

log = logging.getLogger(__name__)

_PLACE_IN_SOURCE = re.compile(r"^(?:\[[\d:]+\] \S+:\d+: )?(?:Check failed: \(.*?\) is false: )?")


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, compiled: Any, vocabulary: "Vocabulary", output: Iterable[int] = ()) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = np.zeros((1, -(-vocabulary.size // 32)), np.int32)
        self._vocabulary = vocabulary
        self._broken = False
        self._is_filled = False
        """The bits are those of what may come next."""
        self._all = False
        self.at_end = False
        """Nothing but an end token may come next; known once `allowed` has been asked."""
        for token in output:
            self.take(token)

    def take(self, token: int) -> None:
        """The answer has this token now. One that the grammar does not allow ends the answer: it is left no token."""
        self._is_filled = False
        if not self._broken and not (self._matcher.is_terminated() or self._matcher.accept_token(token)):
            self._broken = True

    def only(self) -> int | None:
        """The one token that may come next; None where there are several, or none."""
        if self._broken or self._matcher.is_terminated():
            return None
        self._fill()
        if self._all:
            return None
        bits = int.from_bytes(self._bits.tobytes(), "little") & ((1 << self._vocabulary.size) - 1)
        return bits.bit_length() - 1 if bits.bit_count() == 1 else None

    def _fill(self) -> None:
        if not self._is_filled:
            self._all = not self._matcher.fill_next_token_bitmask(self._bits, 0)
            self._is_filled = True

    def restart(self) -> None:
        """As if no token had come."""
        self._matcher.reset()
        self._broken = self._is_filled = self.at_end = False

    @property
    def unended(self) -> npt.NDArray[np.bool_]:
        """Any token but one that ends the answer."""
        bits = np.ones(self._vocabulary.size, np.bool_)
        bits[list(self._vocabulary.end_token_ids)] = False
        return bits

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """For each token of the vocabulary whether it may come next; None: all may."""
        vocabulary = self._vocabulary
        if self._broken or self._matcher.is_terminated():
            return np.zeros(vocabulary.size, np.bool_)
        self._fill()
        if self._all:
            return None
        bits = np.unpackbits(self._bits.view(np.uint8)[0], count=vocabulary.size, bitorder="little").view(np.bool_)
        self.at_end = np.count_nonzero(bits) == np.count_nonzero(bits[list(vocabulary.end_token_ids)])
        return bits


@attrs.frozen(kw_only=True)
class Vocabulary:
    """What a grammar must know of a model's tokens."""

    size: int
    texts: Sequence[bytes]
    """What each token adds to a text, nothing for special ones; those that are missing are never sampled."""
    end_token_ids: Sequence[int]
    """They may come where an answer is complete, and only there."""


class Grammars:
    """Compiles, and keeps what it has compiled. Safe to use from several threads."""

    def __init__(self, load_vocabulary: Callable[[], Vocabulary], *, jump_forward: bool = True) -> None:
        """The vocabulary is asked for when the first grammar is compiled. `jump_forward`: an answer goes on by itself
        where its grammar leaves no choice."""
        self.jump_forward = jump_forward
        self._load_vocabulary = load_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._compiler: Any = None
        self._kept: OrderedDict[GrammarSpec, Any] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()

    def matcher(self, spec: GrammarSpec, output: Iterable[int] = ()) -> Matcher:
        """For an answer that has these tokens so far. Fast where the grammar has been compiled a moment ago."""
        compiled = self.compile(spec)
        assert self._vocabulary is not None
        return Matcher(compiled, self._vocabulary, output)

    def text(self, token: int) -> bytes:
        """What a token adds to a text."""
        texts = self.prepare_texts().texts
        return texts[token] if token < len(texts) else b""

    def prepare_texts(self) -> Vocabulary:
        """Read the vocabulary, unless that has been done: a tenth of a second."""
        if self._vocabulary is None:
            with self._vocabulary_lock:
                if self._vocabulary is None:
                    self._vocabulary = self._load_vocabulary()
        return self._vocabulary

    def has(self, spec: GrammarSpec) -> bool:
        """It has been compiled and is kept."""
        with self._lock:
            return spec in self._kept

    def compile(self, spec: GrammarSpec) -> Any:
        """Takes milliseconds to seconds; lets other threads run. Raises InvalidRequest naming `spec.param`."""
        with self._lock:
            if spec in self._kept:
                self._kept.move_to_end(spec)
                return self._kept[spec]
        compiled = self._compile(spec)
        with self._lock:
            if spec not in self._kept:
                self._kept[spec] = compiled
                self._num_bytes += compiled.memory_size_bytes
            while len(self._kept) > MAX_KEPT or (self._num_bytes > MAX_KEPT_BYTES and len(self._kept) > 1):
                _, old = self._kept.popitem(last=False)
                self._num_bytes -= old.memory_size_bytes
        return compiled

    def prepare_soon(self) -> None:
        """`prepare` in a thread of its own, which a process does not end before; what it raises, the first compilation
        raises again."""

        def run() -> None:
            try:
                self.prepare()
            except Exception as error:
                log.warning("grammars cannot be prepared: %s", error)

        threading.Thread(target=run, name="triolet grammars").start()

    def _compile(self, spec: GrammarSpec) -> Any:
        self.prepare()
        try:
            compiled = _compile(self._compiler, spec)
        except (RuntimeError, ValueError) as error:
            raise InvalidRequest(f"{spec.param} cannot be compiled: {_reason(error)}", param=spec.param) from None
        if compiled.memory_size_bytes > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"{spec.param} cannot be compiled: it takes too much memory.", param=spec.param)
        return compiled

    def prepare(self) -> None:
        """What has to be done once, before the first compilation: import the library, read the vocabulary."""
        with self._lock:
            if self._compiler is not None:
                return
            import xgrammar

            vocabulary = self.prepare_texts()
            texts = list(vocabulary.texts)[: vocabulary.size]
            texts += [b""] * (vocabulary.size - len(texts))
            info = xgrammar.TokenizerInfo(
                texts,
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=vocabulary.size,
                stop_token_ids=list(vocabulary.end_token_ids),
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def grammars_of(source: ModelSource, *, in_advance: bool = False, jump_forward: bool = True) -> Grammars:
    """For a model; its vocabulary is read in the background `in_advance`, or once a grammar is compiled."""

    def load() -> Vocabulary:
        from .tokenizer import load_tokenizer
        from .weights import read_spec

        spec, tokenizer = read_spec(source), load_tokenizer(source)
        ends = dict.fromkeys((*spec.eos_token_ids, *tokenizer.eos_token_ids))
        return Vocabulary(
            size=spec.vocab_size,
            texts=tokenizer.plain_texts(shown=tokenizer.ids_of(MARKS)),
            end_token_ids=tuple(token for token in ends if token < spec.vocab_size),
        )

    grammars = Grammars(load, jump_forward=jump_forward)
    if in_advance:
        grammars.prepare_soon()
    return grammars


def _compile(compiler: Any, spec: GrammarSpec) -> Any:
    match spec.kind:
        case "json_object":
            # Not the built-in JSON grammar, which takes any value.
            return _compile_schema(compiler, '{"type":"object"}', spec, strict=False)
        case "json_schema":
            return _compile_schema(compiler, guarded_schema(spec.source), spec, strict=spec.strict)
        case "regex":
            return compiler.compile_regex(spec.source)
        case "choice":
            return compiler.compile_grammar("root ::= " + " | ".join(map(_literal, json.loads(spec.source))))
        case "ebnf":
            return compiler.compile_grammar(spec.source)
        case "structural_tag":
            return compiler.compile_structural_tag(guarded_tag(spec.source))


def _compile_schema(compiler: Any, schema: str, spec: GrammarSpec, *, strict: bool) -> Any:
    limit = MAX_WHITESPACE if spec.any_whitespace else None
    return compiler.compile_json_schema(
        schema, any_whitespace=spec.any_whitespace, strict_mode=strict, max_whitespace_cnt=limit
    )


def _literal(text: str) -> str:
    """As EBNF spells it."""
    plain = "".join(
        rf"\u{ord(character):04x}" if character < " " or character in '"\\' else character for character in text
    )
    return f'"{plain}"'


def _reason(error: Exception) -> str:
    """The compiler's message without the place in its source."""
    first = _PLACE_IN_SOURCE.sub("", str(error).strip()).splitlines()[:1]
    text = first[0].strip() if first else type(error).__name__
    return text[:300] + ("" if text.endswith(".") else ".")
