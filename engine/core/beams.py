"""Beam search over one request: keeps the best running beams and the best finished answers, told all candidates.

Pure arithmetic over log-probabilities: no blocks, no batch. Scores and stopping follow transformers' beam search with
`early_stopping=False`: a finished answer scores (sum of its log-probabilities) / (its tokens) ** length_penalty, the
end token counted; the search stops when no running beam, at its present length, could beat the worst of n finished.
"""

from collections.abc import Sequence as Sequence_

import attrs

from .ids import TokenId
from .logprobs import TokenLogprobs
from .request import Group, Sequence

Candidates = tuple[tuple[TokenId, ...], tuple[float, ...]]
"""A sequence's most likely next tokens, most likely first, and their log-probabilities."""


@attrs.frozen(kw_only=True)
class Continuation:
    """A beam one token longer."""

    parent: Sequence
    token: TokenId
    log_probability: float
    """Of the whole answer so far."""
    said: "Said | None" = None
    """Of its tokens, the last first, where they are to be reported."""


Said = tuple[TokenLogprobs, "Said | None"]
"""A beam's log-probabilities: those of its last token, and those of the beam that it came from."""


@attrs.frozen(kw_only=True)
class FinishedBeam:
    """A beam that has become an answer."""

    tokens: tuple[TokenId, ...]
    """Without the end token."""
    num_tokens: int
    """With it."""
    score: float
    end_token: TokenId | None = None
    """The one that ended it; None where its length did."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """For each of its tokens, the end token's too, where they were asked for."""


def num_candidates(num_beams: int, num_end_tokens: int) -> int:
    """How many candidates a beam must report so that enough are left when all the end tokens are among the best."""
    return max(2, 1 + num_end_tokens) * num_beams


class BeamSearch:
    """One request's search. Each round: every live beam reports its candidates, then `advance` once."""

    def __init__(
        self,
        *,
        num_beams: int,
        length_penalty: float,
        end_tokens: frozenset[TokenId],
        num_prompt_tokens: int,
        most_tokens: int,
        min_tokens: int = 0,
        num_logprobs: int | None = None,
    ) -> None:
        """`num_logprobs`: report the log-probabilities of each token, and of so many of its rivals."""
        self._width = num_candidates(num_beams, len(end_tokens))
        self.num_candidates = max(self._width, num_logprobs or 0)
        self.answers: list[FinishedBeam] = []
        """The best finished ones so far, best first, at most `num_beams`."""
        self._num_beams = num_beams
        self._length_penalty = length_penalty
        self._end_tokens = end_tokens
        self._num_prompt_tokens = num_prompt_tokens
        self._most_tokens = most_tokens
        self._min_tokens = min_tokens
        self._num_logprobs = num_logprobs
        self._said: dict[Sequence, Said | None] = {}
        self._scores: dict[Sequence, float] = {}
        self._reports: dict[Sequence, Candidates] = {}

    @classmethod
    def of(cls, group: Group) -> "BeamSearch":
        """The search that a request asks for, with its one sequence as the first beam."""
        params = group.request.params
        search = cls(
            num_beams=params.n,
            length_penalty=params.length_penalty,
            end_tokens=group.end_tokens,
            num_prompt_tokens=len(group.request.prompt_token_ids),
            most_tokens=group.most_tokens,
            min_tokens=params.min_tokens,
            num_logprobs=params.logprobs,
        )
        search.start(group.sequences, [0.0], [None])
        return search

    def start(
        self, beams: Sequence_[Sequence], log_probabilities: Sequence_[float], said: Sequence_["Said | None"]
    ) -> None:
        """These are the live beams now."""
        self._said = dict(zip(beams, said, strict=True))
        self._scores = dict(zip(beams, log_probabilities, strict=True))
        self._reports.clear()

    def report(self, beam: Sequence, candidates: Candidates) -> bool:
        """Take a beam's candidates; True when every live beam has reported."""
        self._reports[beam] = candidates
        return len(self._reports) == len(self._scores)

    def forget(self, beam: Sequence) -> None:
        """The beam was preempted: it will report again."""
        self._reports.pop(beam, None)

    def advance(self) -> list[Continuation]:
        """Choose the beams of the next round; none when the search is over, and `answers` holds its result."""
        continuations = [
            Continuation(parent=beam, token=token, log_probability=self._scores[beam] + log_probability)
            for beam, (tokens, log_probabilities) in self._reports.items()
            for token, log_probability in zip(tokens[: self._width], log_probabilities[: self._width], strict=True)
        ]
        continuations.sort(key=lambda c: (-c.log_probability, c.parent.choice, c.token))
        continuations = [self._with_said(continuation) for continuation in continuations[: self._width]]
        running: list[Continuation] = []
        for place, continuation in enumerate(continuations):
            if not self._ends(continuation):
                running.append(continuation)
            elif place < self._num_beams:
                self._finish(continuation)
        running = running[: self._num_beams]
        if not running or not self._may_improve(running[0]):
            return []
        return running

    def _with_said(self, continuation: Continuation) -> Continuation:
        """A beam's candidates are its most likely next tokens: they say how likely the one taken is, and its rivals."""
        if self._num_logprobs is None:
            return continuation
        tokens, log_probabilities = self._reports[continuation.parent]
        own = log_probabilities[tokens.index(continuation.token)]
        entry = TokenLogprobs(
            token_id=continuation.token,
            logprob=own,
            rank=1 + sum(other > own for other in log_probabilities),
            top_token_ids=tokens[: self._num_logprobs],
            top_logprobs=log_probabilities[: self._num_logprobs],
        )
        return attrs.evolve(continuation, said=(entry, self._said[continuation.parent]))

    def _ends(self, continuation: Continuation) -> bool:
        length = len(continuation.parent.tokens) + 1
        if length >= self._most_tokens:
            return True
        return continuation.token in self._end_tokens and length - self._num_prompt_tokens >= self._min_tokens

    def _finish(self, continuation: Continuation) -> None:
        tokens = tuple(continuation.parent.tokens[self._num_prompt_tokens :])
        by_end_token = continuation.token in self._end_tokens
        logprobs: list[TokenLogprobs] = []
        said = continuation.said
        while said is not None:
            entry, said = said
            logprobs.append(entry)
        num_tokens = len(tokens) + 1
        answer = FinishedBeam(
            tokens=tokens if by_end_token else (*tokens, continuation.token),
            num_tokens=num_tokens,
            end_token=continuation.token if by_end_token else None,
            logprobs=tuple(reversed(logprobs)),
            score=continuation.log_probability / num_tokens**self._length_penalty,
        )
        self.answers.append(answer)
        self.answers.sort(key=lambda answer: -answer.score)
        del self.answers[self._num_beams :]

    def _may_improve(self, best: Continuation) -> bool:
        if len(self.answers) < self._num_beams:
            return True
        length = len(best.parent.tokens) + 1 - self._num_prompt_tokens
        return bool(best.log_probability / length**self._length_penalty > self.answers[-1].score)
