"""What requests do to their logits before a token is chosen: masks, biases and penalties, in vLLM's order.

Imports torch and numpy. A `Shaper` is what one sequence keeps for that, token by token; `shape` applies those of a
step to the logits at once, as flat columns of (row, token). A sequence that asks for nothing has no shaper.

The order: the grammar's mask, allowed tokens, bad words, the bias, then the penalties (repetition, frequency,
presence), then the closing mark of a reasoning whose budget is used up. End tokens that may not come yet are masked
beside these, in `sampling.py`: a mask is a mask at any place.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..engine.core.params import SamplingParams
from ..engine.core.plan import JoinedSequence
from ..engine.core.thinking import ThinkingTracker
from .grammar import Grammars, Matcher
from .row_kernels import kernels_for

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

MOST_FORCED = 32
"""Forced tokens that a sequence appends at once: they are computed as one chunk, beside the tokens of others."""

Shaped = Sequence[tuple[int, "Shaper"]]
"""Rows of the logits, and what their sequences do to them."""


class SeenTokens:
    """The distinct tokens that penalties look at, and how often the answer has each; grows token by token."""

    __slots__ = ("_counts", "_ids", "_length", "_place")

    def __init__(self, prompt: Int64Array, output: Int64Array) -> None:
        ids, places = np.unique(np.concatenate((prompt, output)), return_inverse=True)
        self._ids = ids
        self._counts = np.bincount(places[len(prompt) :], minlength=len(ids)).astype(np.float32)
        self._length = len(ids)
        self._place = {token: place for place, token in enumerate(ids.tolist())}

    @property
    def ids(self) -> Int64Array:
        return self._ids[: self._length]

    @property
    def counts(self) -> Float32Array:
        """How often each is in the answer; 0 where only the prompt has it."""
        return self._counts[: self._length]

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, self._length)
        if place == self._length:
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty(max(64, place), np.int64)))
                self._counts = np.concatenate((self._counts, np.zeros(max(64, place), np.float32)))
            self._ids[place] = token
            self._length += 1
        self._counts[place] += 1


class Shaper:
    """One sequence's masks, bias and penalties."""

    def __init__(
        self, sampling: SamplingParams, prompt: Int64Array, output: Int64Array, grammars: Grammars | None = None
    ) -> None:
        """`grammars` is needed where `sampling` has a grammar."""
        self.matcher: Matcher | None = None
        self._thinking: ThinkingTracker | None = None
        if sampling.grammar is not None or sampling.thinking is not None:
            if grammars is None:
                raise AssertionError("a sequence has a grammar, or thinks, and the runner has no vocabulary for that")
            if sampling.grammar is not None:
                self.matcher = grammars.matcher(sampling.grammar)
            if sampling.thinking is not None:
                self._thinking = ThinkingTracker(sampling.thinking, grammars.text)
            for token in output.tolist():
                self._follow(token)
        self.penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self.seen: SeenTokens | None = None
        if sampling.penalised:
            # The other two look at the answer alone.
            self.seen = SeenTokens(prompt if sampling.repetition_penalty != 1 else prompt[:0], output)
        self.bias_ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self.bias = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self.allowed = None if sampling.allowed_token_ids is None else torch.tensor(sampling.allowed_token_ids)
        self._allowed_set = frozenset(sampling.allowed_token_ids or ())
        # A forced token has no logits: there would be nothing to report, and no end token to keep back.
        plain = sampling.logprobs is None and not sampling.min_tokens
        self._may_jump = plain and grammars is not None and grammars.jump_forward
        self._bad_words = sampling.bad_word_token_ids
        longest = max(map(len, self._bad_words), default=1)
        self._tail_length = longest - 1
        self._tail = tuple(output[max(0, len(output) - longest + 1) :].tolist())

    def force(self) -> list[int]:
        """Take the tokens that must come next, as far as nothing else that the sequence asks for rules them out, or
        wants to see them sampled. Not more than `MOST_FORCED`: who is first in a step need not wait for more."""
        matcher, forced = self.matcher, list[int]()
        if self._thinking is not None and self._thinking.phase != "over":
            return forced
        while matcher is not None and self._may_jump and len(forced) < MOST_FORCED:
            token = matcher.only()
            if token is None or token in self.bad_tokens() or not (self.allowed is None or token in self._allowed_set):
                break
            self.take(token)
            forced.append(token)
        return forced

    @staticmethod
    def is_needed(sampling: SamplingParams) -> bool:
        return bool(
            sampling.penalised
            or sampling.logit_bias
            or sampling.allowed_token_ids is not None
            or sampling.bad_word_token_ids
            or sampling.grammar is not None
            or sampling.thinking is not None
        )

    def take(self, token: int) -> None:
        """The sequence has this token now."""
        self._follow(token)
        if self.seen is not None:
            self.seen.add(token)
        if self._tail_length:
            self._tail = (*self._tail, token)[-self._tail_length :]

    def _follow(self, token: int) -> None:
        """Through the reasoning, then through the grammar: what is reasoning the grammar never sees."""
        before = "over"
        if self._thinking is not None:
            before = self._thinking.phase
            self._thinking.take(token)
        if self.matcher is None or before == "inside":
            return
        if before == "front" and self._thinking is not None and self._thinking.phase == "inside":
            self.matcher.restart()  # what looked like an answer was the opening mark
        else:
            self.matcher.take(token)

    def mask(self) -> BoolArray | None:
        """The tokens that the grammar allows; None: all."""
        if self.matcher is None:
            return None
        if self._thinking is None or self._thinking.phase == "over":
            return self.matcher.allowed()
        if self._thinking.phase == "inside":
            return self.matcher.unended
        mask, opening = self.matcher.allowed(), self._thinking.opening()
        if mask is not None and opening is not None:
            mask[opening] = True
        return mask

    def forced(self) -> int | None:
        """The only token that may come, whatever else is asked for."""
        return None if self._thinking is None else self._thinking.forced()

    def bad_tokens(self) -> list[int]:
        """The last tokens of the bad words whose other tokens have just come."""
        return [word[-1] for word in self._bad_words if len(word) == 1 or self._tail[1 - len(word) :] == word[:-1]]


def at_end(shaper: Shaper | None) -> bool:
    """A grammar's text is complete: nothing may come but the end."""
    return shaper is not None and shaper.matcher is not None and shaper.matcher.at_end


def shaper_of(joined: JoinedSequence, tokens: Int64Array, grammars: Grammars | None) -> Shaper | None:
    """What a sequence that joins with these tokens does to its logits; None: nothing."""
    if not Shaper.is_needed(joined.sampling):
        return None
    return Shaper(joined.sampling, tokens[: joined.num_prompt_tokens], tokens[joined.num_prompt_tokens :], grammars)


def shape(logits: Tensor, shaped: Shaped) -> None:
    """Change these rows of `logits`, in place."""
    for place, shaper in shaped:
        if (mask := shaper.mask()) is not None:
            _mask(logits[place], mask)
        if shaper.allowed is not None:
            _keep(logits[place], shaper.allowed)
    bad = [(place, token) for place, shaper in shaped for token in shaper.bad_tokens()]
    if bad:
        places, tokens = zip(*bad, strict=True)
        logits[list(places), list(tokens)] = float("-inf")
    biased = [(place, shaper.bias_ids, shaper.bias) for place, shaper in shaped if shaper.bias_ids.size]
    if biased:
        index = _index([(place, ids) for place, ids, _ in biased], logits.device)
        bias = torch.from_numpy(np.concatenate([bias for _, _, bias in biased])).to(logits.device)
        logits[index] = logits[index] + bias
    penalised = [(place, shaper, shaper.seen) for place, shaper in shaped if shaper.seen is not None]
    if penalised:
        _penalise(logits, penalised)
    for place, shaper in shaped:
        if (forced := shaper.forced()) is not None:
            logits[place].fill_(float("-inf"))
            logits[place, forced] = 0.0


def _mask(row: Tensor, allowed: BoolArray) -> None:
    """Rule the others out, by whichever list is shorter."""
    count = int(np.count_nonzero(allowed))
    if 2 * count < len(allowed):
        _keep(row, torch.from_numpy(np.flatnonzero(allowed)))
    elif count < len(allowed):
        row[torch.from_numpy(np.flatnonzero(~allowed)).to(row.device)] = float("-inf")


def _keep(row: Tensor, allowed: Tensor) -> None:
    allowed = allowed.to(row.device)
    kept = row[allowed]
    row.fill_(float("-inf"))
    row[allowed] = kept


def _penalise(logits: Tensor, penalised: Sequence[tuple[int, Shaper, SeenTokens]]) -> None:
    lengths = np.array([len(seen.ids) for _, _, seen in penalised])
    ids = np.concatenate([seen.ids for _, _, seen in penalised])
    counts = np.concatenate([seen.counts for _, _, seen in penalised])
    places = np.array([place for place, _, _ in penalised])
    each = np.array([shaper.penalties for _, shaper, _ in penalised], np.float32)
    if (kernels := kernels_for(logits)) is not None:
        kernels.penalise(logits, places, lengths, ids, counts, each)
        return
    device = logits.device
    index = torch.from_numpy(places.repeat(lengths)).to(device), torch.from_numpy(ids).to(device)
    repetition, frequency, presence = torch.from_numpy(each.repeat(lengths, 0).T.copy()).to(device)
    times = torch.from_numpy(counts).to(device)
    values = logits[index]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * times
    values -= presence * (times > 0)
    logits[index] = values


def _index(columns: Sequence[tuple[int, Int64Array]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and tokens, flat."""
    lengths = [len(ids) for _, ids in columns]
    places = np.repeat([place for place, _ in columns], lengths)
    tokens = np.concatenate([ids for _, ids in columns])
    return torch.from_numpy(places).to(device), torch.from_numpy(tokens).to(device)
