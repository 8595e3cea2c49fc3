"""Who draws what in a step: one token for most sequences, several first tokens, or the candidates of a beam.

Imports the batch's columns and the sampler. A sequence that draws several tokens has its logits sampled as often, each
time with the seed of another choice; a beam draws nothing and reports its most likely next tokens.
"""

import attrs
import numpy as np
import torch
from torch import Tensor

from ..engine.core.ids import TokenId
from ..engine.core.logprobs import TokenLogprobs
from .batch import KeptBatch
from .logprobs import RawLogprobs, raw_logprobs
from .sampling import Best, BoolArray, Int64Array, sample
from .shaping import shape

Candidates = tuple[tuple[TokenId, ...], tuple[float, ...]]


@attrs.frozen(kw_only=True, eq=False)
class Draws:
    """What a step's logits gave, as columns; a row that drew several tokens is listed as often, in order of choice."""

    rows: Int64Array
    tokens: Int64Array
    first: BoolArray
    """The draw that its row goes on with."""
    failed_rows: Int64Array
    """Rows whose logits are of no use; they are in no other column."""
    ruled_out: frozenset[int] = frozenset()
    """Those of them whose logits were of use until the request's own masks left no token."""
    candidates: tuple[tuple[int, Candidates], ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """For each token, where its row reports them; empty where no row does."""


def draw(logits: Tensor, batch: KeptBatch, rows: Int64Array, best: Best | None = None) -> Draws:
    """Sample `logits` `[len(rows), vocab_size]`, one for each of these rows of the batch. `logits` may be changed.

    `best` is where each row's largest logit is, if that is known.
    """
    if best is not None and batch.takes_best(rows):
        usable = np.isfinite(best.logits[: len(rows)])
        if usable.all():
            # `usable` is true everywhere, as the column that says that each token is a first one.
            return Draws(rows=rows, tokens=best.tokens[: len(rows)], first=usable, failed_rows=rows[:0])
    raw = raw_logprobs(logits, batch, rows)
    shaped = batch.shapers(rows)
    if shaped:
        shape(logits, shaped)
        best = None  # it was another one's
    if not batch.draws_plainly(rows):
        return _draw_specially(logits, batch, rows, raw)
    tokens, usable = sample(logits, batch.sampling(rows), best)
    logprobs = () if raw is None else tuple(raw.entries(np.flatnonzero(usable).tolist(), tokens[usable]))
    if usable.all():
        return Draws(rows=rows, tokens=tokens, first=usable, failed_rows=rows[:0], logprobs=logprobs)
    failed = np.flatnonzero(~usable)
    return Draws(
        rows=rows[usable],
        tokens=tokens[usable],
        first=np.ones(int(usable.sum()), np.bool_),
        failed_rows=rows[failed],
        ruled_out=_ruled_out(logits, rows, failed),
        logprobs=logprobs,
    )


def _ruled_out(logits: Tensor, rows: Int64Array, failed: Int64Array) -> frozenset[int]:
    """Which of the rows at these places have no token left: all at -inf, where a broken one would have a NaN."""
    if not failed.size:
        return frozenset()
    largest = logits[torch.from_numpy(failed).to(logits.device)].max(-1).values.cpu().numpy()
    return frozenset(rows[failed[largest == -np.inf]].tolist())


def _draw_specially(logits: Tensor, batch: KeptBatch, rows: Int64Array, raw: RawLogprobs | None) -> Draws:
    counts = batch.num_samples(rows)
    num_candidates = batch.num_candidates(rows)
    beams = np.flatnonzero(num_candidates)
    good = torch.isfinite(logits[torch.from_numpy(beams).to(logits.device)].max(-1).values).cpu().numpy()
    candidates = tuple(
        (int(rows[place]), _most_likely(logits[place], int(num_candidates[place])))
        for place, usable in zip(beams.tolist(), good.tolist(), strict=True)
        if usable
    )
    counts[beams] = 0
    places = np.repeat(np.arange(len(rows)), counts)
    choices = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens, usable = np.empty(0, np.int64), np.empty(0, np.bool_)
    if len(places):
        # A copy: `sample` masks its rows in place, and they may stand here several times.
        own = logits.index_select(0, torch.from_numpy(places).to(logits.device))
        tokens, usable = sample(own, batch.sampling(rows[places], choices))
    broken = places[~usable & (choices == 0)]
    return Draws(
        rows=rows[places[usable]],
        tokens=tokens[usable],
        first=choices[usable] == 0,
        failed_rows=np.concatenate((rows[beams[~good]], rows[broken])),
        ruled_out=_ruled_out(logits, rows, broken),
        candidates=candidates,
        logprobs=() if raw is None else tuple(raw.entries(places[usable].tolist(), tokens[usable])),
    )


def _most_likely(logits: Tensor, count: int) -> Candidates:
    """The largest logits, ties to the lowest id, and their log-probabilities (float64)."""
    count = min(count, logits.numel())
    log_probabilities = logits.double().log_softmax(-1)
    threshold = log_probabilities.topk(count).values[-1]
    (ids,) = torch.nonzero(log_probabilities >= threshold, as_tuple=True)  # rising; more than `count` only with ties
    values = log_probabilities[ids]
    order = values.sort(descending=True, stable=True).indices[:count]
    tokens = tuple(TokenId(token) for token in ids[order].tolist())
    return tokens, tuple(values[order].tolist())
