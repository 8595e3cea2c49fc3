"""Log-probabilities for the requests that ask: float32 log-softmax of the model's own logits.

Imports torch, numpy and the message types. What leaves it are plain numbers.
"""

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from ..engine.core.ids import TokenId
from ..engine.core.logprobs import PromptLogprobs, TokenLogprobs
from .batch import KeptBatch, StepWork
from .sampling import Int64Array
from .topk import largest

ROWS_AT_A_TIME = 32
"""Rows of a prompt whose log-softmax is held at a time."""

RANKED = 20
"""So many of the most likely tokens are looked up in any case: the rank of a token that is among them is known."""


class RawLogprobs:
    """The log-probabilities of some rows of a step, taken before anything changes the logits."""

    def __init__(
        self, logits: Tensor, places: Int64Array, counts: Int64Array, named: dict[int, tuple[int, ...]]
    ) -> None:
        """`places` are rows of `logits`, `counts` how many of the most likely tokens each reports; `named` says for
        some places which tokens they report instead."""
        self._named = named
        if len(places) < len(logits):
            logits = logits.index_select(0, torch.from_numpy(places).to(logits.device))
        self._logprobs = logits.log_softmax(-1)
        self._at = {place: (at, count) for at, (place, count) in enumerate(zip(places.tolist(), counts, strict=True))}

    def entries(self, places: Sequence[int], tokens: Int64Array) -> list[TokenLogprobs | None]:
        """For each drawn token, from which row of the logits it was drawn; None where its row reports nothing."""
        entries: list[TokenLogprobs | None] = [None] * len(places)
        asked = [i for i, place in enumerate(places) if place in self._at]
        rows = [self._at[places[i]][0] for i in asked]
        counts = [int(self._at[places[i]][1]) for i in asked]
        for i, entry in zip(asked, _entries(self._logprobs, rows, tokens[asked], counts), strict=True):
            entries[i] = entry if places[i] not in self._named else self._renamed(entry, places[i])
        return entries

    def _renamed(self, entry: TokenLogprobs, place: int) -> TokenLogprobs:
        """With the rivals that were named, most likely first, ties by lowest id."""
        token_ids = sorted(set(self._named[place]))
        values = self._logprobs[self._at[place][0]][torch.tensor(token_ids, device=self._logprobs.device)]
        ranked = sorted(zip((-values).tolist(), token_ids, strict=True))
        return attrs.evolve(
            entry,
            top_token_ids=tuple(TokenId(token_id) for _, token_id in ranked),
            top_logprobs=tuple(-value for value, _ in ranked),
        )


def raw_logprobs(logits: Tensor, batch: KeptBatch, rows: Int64Array) -> RawLogprobs | None:
    """Those of the rows that ask; None where none does. `logits` has a row for each of `rows`."""
    counts = batch.num_logprobs(rows)
    if counts is None:
        return None
    places = np.flatnonzero(counts >= 0)
    if not places.size:
        return None
    return RawLogprobs(logits, places, counts[places], batch.logprob_token_ids(rows))


def prompt_logprobs(logits: Tensor, batch: KeptBatch, work: StepWork) -> list[tuple[int, PromptLogprobs]]:
    """For each row of the batch that has prompt tokens to report in this step, in `logits` behind the sampled rows."""
    answers: list[tuple[int, PromptLogprobs]] = []
    at = len(work.sampled_rows)
    for row, position, tokens, count in work.scored:
        entries: list[TokenLogprobs] = []
        for first in range(0, len(tokens), ROWS_AT_A_TIME):
            some = tokens[first : first + ROWS_AT_A_TIME]
            chunk = logits[at + first : at + first + len(some)].log_softmax(-1)
            entries += _entries(chunk, range(len(some)), some, [count] * len(some))
        at += len(tokens)
        answers.append((row, (position, tuple(entries))))
    return answers


def _entries(
    logprobs: Tensor, rows: Iterable[int], tokens: Int64Array, counts: Sequence[int]
) -> Iterable[TokenLogprobs]:
    """One for each token, from these rows of `logprobs`."""
    chosen = list(rows)
    if not chosen:
        return []
    whole = chosen == list(range(len(logprobs)))  # a copy costs as much as all that follows
    own = logprobs if whole else logprobs.index_select(0, torch.tensor(chosen, device=logprobs.device))
    values = own.gather(1, torch.from_numpy(tokens).to(own.device)[:, None])
    most = min(max(*counts, RANKED), own.shape[1])
    top, ids = largest(own, most)
    ranks = 1 + (top > values).sum(-1)
    (beyond,) = torch.nonzero(values[:, 0] < top[:, -1], as_tuple=True)  # more of the larger ones are not in the list
    if len(beyond):
        ranks[beyond] = 1 + (own[beyond] > values[beyond]).sum(-1)
    columns = (tokens, values[:, 0].tolist(), ranks.tolist(), ids.tolist(), top.tolist(), counts)
    return [
        TokenLogprobs(
            token_id=TokenId(int(token)),
            logprob=value,
            rank=rank,
            top_token_ids=tuple(map(TokenId, best[:count])),
            top_logprobs=tuple(best_values[:count]),
        )
        for token, value, rank, best, best_values, count in zip(*columns, strict=True)
    ]
