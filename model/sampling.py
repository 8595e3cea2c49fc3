"""Choosing tokens from logits, vectorised over the rows of a step.

In vLLM's order: end tokens that may not come yet are masked, then temperature, min_p, top_k, top_p, then the draw. Each
filter says which tokens stay by a *threshold on the logit*, so tokens of equal logits stay or go together and no order
among them is ever chosen; one uniform number for each token then picks from the cumulated weights, in order of ids.

The uniform number is a hash of (seed, position): it knows nothing of the batch, the step or the draws before. Sums run
in float64 along a row, so that a row's token does not depend on its neighbours. Greedy rows take the largest logit,
ties to the lowest id.

What is written here is the law, for any device. A thread that runs the native kernels has them follow it instead
(`native/sampling.cpp`); rounding apart they choose the same tokens.
"""

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .nucleus import keep_from, kept, top_p_threshold
from .row_kernels import kernels_for
from .topk import largest as most_likely

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

FEW = (64, 256)
"""So many of the most likely tokens are looked at first. A row whose filters leave no more is drawn from these alone;
which row that is depends on nothing but the row."""
TOP_P_CANDIDATES = 2048
"""Most likely tokens that are sorted to find the top_p threshold of other rows; where they do not reach it, all are."""
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
    if rows.masked:
        best = None  # it may be masked
    kernels = kernels_for(logits)
    if kernels is not None and (best is None or rows.temperature.any()):
        return kernels.sample(logits, rows, uniforms(rows.seeds, rows.positions), best)
    largest = logits.amax(-1) if best is None else torch.from_numpy(best.logits[: len(logits)])
    usable = torch.isfinite(largest).cpu().numpy()
    chosen = np.zeros(len(logits), np.int64) if best is None else best.tokens[: len(logits)].copy()
    greedy = np.flatnonzero((rows.temperature == 0) & usable)
    if greedy.size and best is None:
        chosen[greedy] = _take(logits, greedy).max(-1).indices.cpu().numpy()  # the first of equals
    drawn = np.flatnonzero((rows.temperature > 0) & usable)
    if drawn.size:
        chosen[drawn] = _draw(_take(logits, drawn), _take(largest, drawn), rows, drawn)
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


def _draw(logits: Tensor, largest: Tensor, rows: SamplingRows, drawn: Int64Array) -> Int64Array:
    """Tokens `[n]` for rows with a temperature; `drawn` are their indexes in the columns. Changes `logits`."""
    tokens = np.empty(drawn.size, np.int64)
    settled = np.zeros(drawn.size, np.bool_)
    for few in FEW:
        top_k = rows.top_k[drawn]
        left = np.flatnonzero(~settled & ((top_k > 0) & (top_k <= few) | (rows.min_p[drawn] > 0)))
        if left.size and few < logits.shape[1]:
            found, right = _draw_from_few(few, _take(logits, left), _take(largest, left), rows, drawn[left])
            tokens[left[right]] = found[right]
            settled[left[right]] = True
    rest = np.flatnonzero(~settled)
    if rest.size:
        tokens[rest] = _draw_from_all(_take(logits, rest), _take(largest, rest), rows, drawn[rest]).cpu().numpy()
    return tokens


def _draw_from_few(
    few: int, logits: Tensor, largest: Tensor, rows: SamplingRows, drawn: Int64Array
) -> tuple[Int64Array, BoolArray]:
    """The same from the `few` most likely tokens, and for which rows that is right: where no other token has a part in
    it, because the filters leave fewer or because the others are at -inf."""
    device = logits.device
    values, ids = most_likely(logits, few)
    temperature = torch.from_numpy(rows.temperature[drawn]).to(device, torch.float32).clamp(min=1e-30)[:, None]
    scaled = (values - largest[:, None]) / temperature
    last = scaled[:, -1]
    top_k = torch.from_numpy(rows.top_k[drawn]).to(device)
    kth = scaled.gather(1, (top_k.clamp(1, few) - 1)[:, None]).squeeze(1)
    floor = torch.from_numpy(rows.min_p[drawn]).to(device).log().to(torch.float32)
    floor = torch.where((top_k > 0) & (top_k <= few), torch.maximum(floor, kth), floor)
    weights = scaled.exp().double() * (scaled >= floor[:, None])
    top_p = torch.from_numpy(rows.top_p[drawn]).to(device)
    before = weights.cumsum(-1) - weights
    needed = (before < (weights.sum(-1) * top_p)[:, None]) & (weights > 0)
    least = scaled.gather(1, (needed.sum(-1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
    weights *= (top_p == 1)[:, None] | (scaled >= least[:, None])
    ids, order = ids.sort(-1)
    cumulated = weights.gather(1, order).cumsum(-1)
    uniform = torch.from_numpy(uniforms(rows.seeds[drawn], rows.positions[drawn])).to(device)
    place, _ = _first_above(cumulated, uniform * cumulated[:, -1])
    settled = (floor > last) | (last == float("-inf"))
    return ids.gather(1, place[:, None]).squeeze(1).cpu().numpy(), settled.cpu().numpy()


def _draw_from_all(logits: Tensor, largest: Tensor, rows: SamplingRows, drawn: Int64Array) -> Tensor:
    """From the whole vocabulary. Changes `logits`."""
    device, vocab = logits.device, logits.shape[1]
    temperature = torch.from_numpy(rows.temperature[drawn]).to(device, torch.float32)
    # The largest first: a tiny temperature then leaves 0 and -inf, never inf - inf.
    scaled = logits.sub_(largest[:, None]).div_(temperature.clamp(min=1e-30)[:, None])
    weights = _exp(scaled)
    floor = torch.from_numpy(rows.min_p[drawn]).to(device).log().to(torch.float32)
    top_k = rows.top_k[drawn]
    limited = np.flatnonzero((top_k > 0) & (top_k < vocab))
    if limited.size:
        index = torch.from_numpy(limited).to(device)
        floor[index] = torch.maximum(floor[index], _kth_largest(_take(scaled, limited), top_k[limited]))
    if limited.size or (rows.min_p[drawn] > 0).any():
        _cut(weights, scaled, floor)
    limited = np.flatnonzero(rows.top_p[drawn] < 1)
    if limited.size:
        _keep_nuclei(scaled, weights, floor, limited, rows.top_p[drawn][limited])
    uniform = torch.from_numpy(uniforms(rows.seeds[drawn], rows.positions[drawn])).to(device)
    return _pick(weights, uniform)


def _keep_nuclei(scaled: Tensor, weights: Tensor, floor: Tensor, limited: Int64Array, share: Float64Array) -> None:
    """top_p on these rows of weights. Changes `floor` too."""
    device = scaled.device
    top_p = torch.from_numpy(share).to(device)
    least = _top_p_threshold(_take(scaled, limited), _take(weights, limited), _take(floor, limited), top_p)
    floor[torch.from_numpy(limited).to(device)] = least
    _cut(weights, scaled, floor)


def _exp(scaled: Tensor) -> Tensor:
    if scaled.device.type != "cpu":
        return scaled.exp()
    return torch.exp(scaled, out=torch.from_numpy(kept("weights", tuple(scaled.shape))))


def _cut(weights: Tensor, scaled: Tensor, floor: Tensor) -> None:
    """Only tokens from the floor on keep their weights."""
    if weights.device.type == "cpu":  # numpy takes a quarter of torch's time here
        keep_from(weights.numpy(), scaled.numpy(), floor.numpy())
    else:
        weights.mul_(scaled >= floor[:, None])


def _falling(values: Tensor, count: int) -> Tensor:
    """The `count` largest values of each row, largest first."""
    width = values.shape[1]
    if values.device.type != "cpu":
        return values.topk(count, -1).values if count < width else values.sort(-1, descending=True).values
    array = values.numpy()  # numpy sorts and partitions with vector instructions, torch does not
    if count < width:
        array = np.partition(array, width - count, axis=1)[:, width - count :]
    return torch.from_numpy(np.sort(array, axis=1)).flip(1)


def _kth_largest(scaled: Tensor, top_k: Int64Array) -> Tensor:
    """The k-th largest value of each row, its own k."""
    index = torch.from_numpy(top_k - 1).to(scaled.device)
    return _falling(scaled, int(top_k.max())).gather(1, index[:, None]).squeeze(1)


def _top_p_threshold(scaled: Tensor, weights: Tensor, floor: Tensor, top_p: Tensor) -> Tensor:
    """The scaled logit of the last token that top_p needs, going down from the most likely one.

    `weights` are what the other filters left, 0 below `floor`. A token stays while the weight of the more likely ones
    is below top_p of the whole.
    """
    wanted = _sums(weights).cumsum(-1)[:, -1] * top_p
    threshold = torch.empty_like(floor)
    unsettled = torch.arange(scaled.shape[0], device=scaled.device)
    if scaled.device.type == "cpu":
        found, known = top_p_threshold(scaled.numpy(), weights.numpy(), floor.numpy(), wanted.numpy())
        threshold, unsettled = torch.from_numpy(found), torch.from_numpy(np.flatnonzero(~known))
    for candidates in (TOP_P_CANDIDATES, scaled.shape[1]):
        if not unsettled.numel():
            break
        some = scaled if unsettled.shape[0] == scaled.shape[0] else scaled.index_select(0, unsettled)
        best = _falling(some, min(candidates, scaled.shape[1]))
        inside = best.exp() * (best >= floor[unsettled, None])
        last = _locate(inside, wanted[unsettled], right=False).clamp(max=best.shape[1] - 1)
        threshold[unsettled] = torch.maximum(best.gather(1, last[:, None]).squeeze(1), floor[unsettled])
        # Where even the last candidate is needed, more may be.
        unsettled = unsettled[last == best.shape[1] - 1]
        if candidates >= scaled.shape[1]:
            break
    return threshold


def _sums(weights: Tensor) -> Tensor:
    """Sums of `_CHUNK` neighbours `[n, chunks]`, as float64 for what is done with them."""
    missing = -weights.shape[1] % _CHUNK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    return weights.view(weights.shape[0], -1, _CHUNK).sum(-1).double()


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token where the cumulated weight passes `uniform` of the total."""
    return _locate(weights, uniform * _sums(weights).cumsum(-1)[:, -1], right=True)


def _locate(weights: Tensor, target: Tensor, *, right: bool) -> Tensor:
    """The first place where the cumulated weight is above the target, or with `right=False` where it reaches it: first
    its chunk, then the place in the chunk."""
    missing = -weights.shape[1] % _CHUNK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    outer = _sums(weights).cumsum(-1)
    chunk, rest = _first_above(outer, target, right=right)
    inner = weights.view(weights.shape[0], -1, _CHUNK).gather(1, chunk[:, None, None].expand(-1, 1, _CHUNK)).squeeze(1)
    within, _ = _first_above(inner.cumsum(-1, dtype=torch.float64), rest, right=right)
    return chunk * _CHUNK + within


def _first_above(cumulated: Tensor, target: Tensor, *, right: bool = True) -> tuple[Tensor, Tensor]:
    """The first index whose cumulated weight is above the target (`right=False`: reaches it), and by how much the
    target is above the index before.

    The target is kept just below the total, so that rounding never leads past the last token that has a weight.
    """
    total = cumulated[:, -1]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulated, target[:, None], right=right)
    before = cumulated.gather(1, (index - 1).clamp(min=0)).masked_fill(index == 0, 0.0)
    return index.squeeze(1), target - before.squeeze(1)
