"""Choosing tokens from logits, vectorised over the rows of a step.

In vLLM's order: end tokens that may not come yet are masked, then temperature, min_p, top_k, top_p, then the draw. Each
filter says which tokens stay by a *threshold on the logit*, so tokens of equal logits stay or go together and no order
among them is ever chosen; one uniform number for each token then picks from the cumulated weights, in order of ids.

The uniform number is a hash of (seed, position): it knows nothing of the batch, the step or the draws before. Sums run
in float64 along a row, so that a row's token does not depend on its neighbours. Greedy rows take the largest logit,
ties to the lowest id.
"""

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

TOP_P_CANDIDATES = (128, 2048)
"""Most likely tokens that are sorted to find a top_p threshold; where the first number does not reach it the second,
then all."""
_CHUNK = 256
"""Weights are summed in chunks of this many, then within one chunk: one pass instead of a long running sum."""


@attrs.frozen(kw_only=True, eq=False)
class SamplingRows:
    """What each row of a step's logits asks for: parallel columns on the host."""

    temperature: Float64Array
    """0 is greedy."""
    top_k: Int64Array
    """Below 1: all."""
    top_p: Float64Array
    min_p: Float64Array
    seeds: npt.NDArray[np.uint64]
    positions: Int64Array
    """The position of the token that is to be sampled."""
    masked: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(row, tokens that may not be sampled)."""


@attrs.frozen(kw_only=True, eq=False)
class Best:
    """The largest logit of each row where the model has found it already; NaN where a row has one."""

    tokens: Int64Array
    """The first of equals."""
    logits: npt.NDArray[np.float32]


def sample(logits: Tensor, rows: SamplingRows, best: Best | None = None) -> tuple[Int64Array, BoolArray]:
    """One token for each row of `logits` `[n, vocab_size]`, and which rows' logits could be used.

    A row with a NaN, with +inf, or with nothing above -inf is not usable; its token means nothing. `logits` is float32
    and may be changed. Greedy rows of which `best` is known are not looked through again.
    """
    for row, tokens in rows.masked:
        logits[row, list(tokens)] = float("-inf")
    if best is None or rows.masked:
        largest, tokens_of = logits.max(-1)  # the first of equals; NaN wins
    else:
        num_rows = len(logits)
        largest, tokens_of = torch.from_numpy(best.logits[:num_rows]), torch.from_numpy(best.tokens[:num_rows])
    usable = torch.isfinite(largest).cpu().numpy()
    chosen = tokens_of.cpu().numpy()
    drawn = np.flatnonzero((rows.temperature > 0) & usable)
    if drawn.size:
        chosen[drawn] = _draw(_take(logits, drawn), _take(largest, drawn), rows, drawn).cpu().numpy()
    return chosen, usable


def uniforms(seeds: npt.NDArray[np.uint64], positions: Int64Array) -> Float64Array:
    """A number in [0, 1) for each (seed, position): splitmix64's finalizer over the seed, then over the position."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        key = _mix64(seeds + golden)
        bits = _mix64(key + (positions.astype(np.uint64) + np.uint64(1)) * golden)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """https://prng.di.unimi.it/splitmix64.c: every input bit moves every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _take(tensor: Tensor, rows: Int64Array) -> Tensor:
    """These rows, in rising order; the tensor itself where they are all: a copy of logits costs as much as a filter."""
    if rows.size == tensor.shape[0]:
        return tensor
    return tensor.index_select(0, torch.from_numpy(rows).to(tensor.device))


def _draw(logits: Tensor, largest: Tensor, rows: SamplingRows, drawn: Int64Array) -> Tensor:
    """Tokens `[n]` for rows with a temperature; `drawn` are their indexes in the columns. Changes `logits`."""
    device, vocab = logits.device, logits.shape[1]
    temperature = torch.from_numpy(rows.temperature[drawn]).to(device, torch.float32)
    # The largest first: a tiny temperature then leaves 0 and -inf, never inf - inf.
    scaled = logits.sub_(largest[:, None]).div_(temperature.clamp(min=1e-30)[:, None])
    weights = scaled.exp()
    floor = torch.from_numpy(rows.min_p[drawn]).to(device).log().to(torch.float32)
    top_k = rows.top_k[drawn]
    limited = np.flatnonzero((top_k > 0) & (top_k < vocab))
    if limited.size:
        index = torch.from_numpy(limited).to(device)
        floor[index] = torch.maximum(floor[index], _kth_largest(_take(scaled, limited), top_k[limited]))
    if limited.size or (rows.min_p[drawn] > 0).any():
        weights.masked_fill_(scaled < floor[:, None], 0.0)
    limited = np.flatnonzero(rows.top_p[drawn] < 1)
    if limited.size:
        top_p = torch.from_numpy(rows.top_p[drawn][limited]).to(device)
        least = _top_p_threshold(_take(scaled, limited), _take(weights, limited), _take(floor, limited), top_p)
        floor[torch.from_numpy(limited).to(device)] = least
        weights.masked_fill_(scaled < floor[:, None], 0.0)
    uniform = torch.from_numpy(uniforms(rows.seeds[drawn], rows.positions[drawn])).to(device)
    return _pick(weights, uniform)


def _kth_largest(scaled: Tensor, top_k: Int64Array) -> Tensor:
    """The k-th largest value of each row, its own k."""
    index = torch.from_numpy(top_k - 1).to(scaled.device)
    return scaled.topk(int(top_k.max()), -1).values.gather(1, index[:, None]).squeeze(1)


def _top_p_threshold(scaled: Tensor, weights: Tensor, floor: Tensor, top_p: Tensor) -> Tensor:
    """The scaled logit of the last token that top_p needs, going down from the most likely one.

    `weights` are what the other filters left, 0 below `floor`. A token stays while the weight of the more likely ones
    is below top_p of the whole.
    """
    wanted = _sums(weights).cumsum(-1)[:, -1] * top_p
    threshold = torch.empty_like(floor)
    unsettled = torch.arange(scaled.shape[0], device=scaled.device)
    for candidates in (*TOP_P_CANDIDATES, scaled.shape[1]):
        some = scaled if unsettled.shape[0] == scaled.shape[0] else scaled.index_select(0, unsettled)
        if candidates < scaled.shape[1]:
            best = some.topk(candidates, -1).values
        else:
            best = some.sort(-1, descending=True).values
        inside = best.exp().masked_fill_(best < floor[unsettled, None], 0.0)
        before = inside.cumsum(-1, dtype=torch.float64) - inside
        needed = (before < wanted[unsettled, None]) & (inside > 0)
        last = needed.sum(-1).clamp(min=1) - 1
        threshold[unsettled] = best.gather(1, last[:, None]).squeeze(1)
        # Where even the last candidate is needed, more may be.
        unsettled = unsettled[needed[:, -1]]
        if not unsettled.numel() or candidates >= scaled.shape[1]:
            break
    return threshold


def _sums(weights: Tensor) -> Tensor:
    """Sums of `_CHUNK` neighbours `[n, chunks]` in float64."""
    missing = -weights.shape[1] % _CHUNK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    return weights.view(weights.shape[0], -1, _CHUNK).sum(-1, dtype=torch.float64)


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token where the cumulated weight passes `uniform` of the total: first its chunk, then within the chunk."""
    missing = -weights.shape[1] % _CHUNK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    outer = _sums(weights).cumsum(-1)
    chunk, rest = _first_above(outer, uniform * outer[:, -1])
    inner = weights.view(weights.shape[0], -1, _CHUNK).gather(1, chunk[:, None, None].expand(-1, 1, _CHUNK)).squeeze(1)
    within, _ = _first_above(inner.cumsum(-1, dtype=torch.float64), rest)
    return chunk * _CHUNK + within


def _first_above(cumulated: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first index whose cumulated weight is above the target, and what the target is above the index before.

    The target is kept just below the total, so that rounding never leads past the last token that has a weight.
    """
    total = cumulated[:, -1]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulated, target[:, None], right=True)
    before = cumulated.gather(1, (index - 1).clamp(min=0)).masked_fill(index == 0, 0.0)
    return index.squeeze(1), target - before.squeeze(1)
