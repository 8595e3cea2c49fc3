"""Where top_p cuts: the threshold of each row, on a CPU, without sorting a vocabulary.

Imports numpy and torch. A row whose nucleus is small shows it among its most likely tokens. A flat one does not: there
a sample of the rest says about where the cut is, everything above that is summed, and only what lies around it is
sorted. What is found is checked; a row for which the sample was misleading is left to whoever sorts.

Whole rows are worked on in arrays that are kept: fresh ones of megabytes cost more than what is done with them.
"""

import threading

import numpy as np
import numpy.typing as npt
import torch

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

MOST_LIKELY = 2048
"""Tokens that are sorted at first."""
_EVERY = 16
"""Of the others, one in so many is in the sample."""
_CHUNK = 256
"""Weights are summed in chunks of this many in float32, the chunks in float64."""

_kept = threading.local()


def kept(name: str, shape: tuple[int, ...], dtype: type = np.float32) -> npt.NDArray[np.generic]:
    """An array of this thread's, to be used until the next one of that name is asked for."""
    size = int(np.prod(shape))
    array = getattr(_kept, name, None)
    if array is None or len(array) < size:
        array = np.empty(size, dtype)
        setattr(_kept, name, array)
    found: npt.NDArray[np.generic] = array[:size].reshape(shape)
    return found


def keep_from(weights: Float32Array, scaled: Float32Array, floor: Float32Array) -> None:
    """Only tokens from the floor on keep their weights."""
    mask = np.greater_equal(scaled, floor[:, None], out=kept("mask", scaled.shape, np.bool_))
    np.multiply(weights, mask, out=weights)


def top_p_threshold(
    scaled: Float32Array, weights: Float32Array, floor: Float32Array, wanted: Float64Array
) -> tuple[Float32Array, BoolArray]:
    """The scaled logit of the last token of each row that is needed to reach the weight that is wanted, going down from
    the most likely one; and for which rows that is known.

    `weights` are exp(scaled), 0 below `floor`.
    """
    threshold = np.empty_like(floor)
    top = _most_likely(scaled)
    known = _settle(top, floor, wanted, threshold, above=np.zeros_like(wanted), ends=top.shape[1] == scaled.shape[1])
    flat = np.flatnonzero(~known)
    if flat.size and top.shape[1] < scaled.shape[1]:
        rows = slice(None) if flat.size == len(scaled) else flat
        found = floor[rows].copy()
        known[flat] = _around(scaled[rows], weights[rows], floor[rows], wanted[rows], top[rows], found)
        threshold[flat] = found
    return threshold, known


def _most_likely(scaled: Float32Array) -> Float32Array:
    """The largest of each row, falling."""
    width = scaled.shape[1]
    work = np.negative(scaled, out=kept("work", scaled.shape))
    if width > MOST_LIKELY:
        work.partition(MOST_LIKELY - 1, axis=1)
        work = work[:, :MOST_LIKELY]
    return _falling(np.ascontiguousarray(work))


def _falling(negated: Float32Array) -> Float32Array:
    """Sorted and negated, in place."""
    negated.sort(axis=1)
    return np.negative(negated, out=negated)


def _around(
    scaled: Float32Array,
    weights: Float32Array,
    floor: Float32Array,
    wanted: Float64Array,
    top: Float32Array,
    threshold: Float32Array,
) -> BoolArray:
    """Rows that need more than their most likely tokens."""
    high, low = _bracket(scaled, weights, floor, wanted, top)
    above = _sum_above(weights, scaled, high)
    mask = np.less_equal(scaled, high[:, None], out=kept("mask", scaled.shape, np.bool_))
    np.logical_and(mask, np.greater_equal(scaled, low[:, None], out=kept("other", scaled.shape, np.bool_)), out=mask)
    places = np.flatnonzero(mask)
    rows, width = len(scaled), scaled.shape[1]
    counts = np.diff(np.searchsorted(places, np.arange(rows + 1) * width))
    between = np.full((rows, max(1, int(counts.max()))), np.inf, np.float32)
    between[np.arange(between.shape[1]) < counts[:, None]] = -scaled.reshape(-1)[places]
    return _settle(_falling(between), floor, wanted, threshold, above=above, ends=False)


def _bracket(
    scaled: Float32Array, weights: Float32Array, floor: Float32Array, wanted: Float64Array, top: Float32Array
) -> tuple[Float32Array, Float32Array]:
    """Two scaled logits for each row: the threshold is likely to be from the second to the first."""
    least = top[:, -1]
    missing = wanted - _weights(top, floor).sum(1)
    sample = np.negative(scaled[:, ::_EVERY])
    sample[sample <= -least[:, None]] = np.inf
    sample = _falling(sample)
    cumulated = _weights(sample, floor).cumsum(1) * _EVERY
    rows, end = np.arange(len(scaled)), sample.shape[1] - 1
    first = np.minimum(_num_below(cumulated, missing), end)
    # The heavy ones make such a guess a bad one. What it is off by is known once they are summed; from there it is not
    # far, over weights that are about equal.
    rest = wanted - _sum_above(weights, scaled, sample[rows, first])
    second = _num_below(cumulated, cumulated[rows, first] + rest)
    margin = 48 + (4 * np.sqrt(np.abs(second - first))).astype(np.int64)
    before, behind = np.minimum(second - margin, end), np.clip(second + margin, 0, end)
    high = np.where(before < 0, least, sample[rows, np.maximum(before, 0)])
    # Behind the sample's end there is nothing to exclude.
    low = np.where(behind == end, np.float32(-np.inf), sample[rows, behind])
    return high, low


def _settle(
    falling: Float32Array,
    floor: Float32Array,
    wanted: Float64Array,
    threshold: Float32Array,
    *,
    above: Float64Array,
    ends: bool,
) -> BoolArray:
    """Go down these values, heavier ones having the weight `above`; writes the threshold of rows where it is among
    them, and says which those are. `ends`: there are no other values."""
    reached = above[:, None] + _weights(falling, floor).cumsum(1)
    last = _num_below(reached, wanted)
    inside: BoolArray = (last < falling.shape[1]) & (above < wanted)
    if ends:
        inside[:] = True
    last = np.minimum(last, falling.shape[1] - 1)
    found = np.maximum(falling[np.arange(len(falling)), last], floor)
    threshold[inside] = found[inside]
    return inside


def _num_below(rising: Float64Array, limit: Float64Array) -> Int64Array:
    """How many of each row are below its limit."""
    counts: Int64Array = np.count_nonzero(rising < limit[:, None], axis=1)
    return counts


def _weights(scaled: Float32Array, floor: Float32Array) -> Float64Array:
    return np.exp(scaled).astype(np.float64) * (scaled >= floor[:, None])


def _sum_above(weights: Float32Array, scaled: Float32Array, least: Float32Array) -> Float64Array:
    """The weight of the tokens above a scaled logit."""
    mask = np.greater(scaled, least[:, None], out=kept("mask", scaled.shape, np.bool_))
    return _sums(np.multiply(weights, mask, out=kept("work", scaled.shape)))


def _sums(weights: Float32Array) -> Float64Array:
    whole = weights.shape[1] // _CHUNK * _CHUNK
    own = torch.from_numpy(weights)  # which sums in a quarter of numpy's time
    chunks = own[:, :whole].view(len(weights), -1, _CHUNK).sum(-1).double().sum(-1)
    total: Float64Array = (chunks + own[:, whole:].sum(-1)).numpy()
    return total
