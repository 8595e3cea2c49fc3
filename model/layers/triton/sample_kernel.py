"""The kernel behind `sample.py`: a program looks through one row of logits, in blocks, a few times.

1. Shape the row: mask, bias, penalties. Find its largest logit. A greedy row is done.
2. A logit's *key* says how far it is below the largest, divided by the temperature: the bits of that float32, which
   order as it does. Each filter is a largest key that stays: of min_p directly; of top_k the smallest key up to which
   there are k tokens; of top_p the smallest up to which the weights, exp(-distance), reach top_p of what is left.
3. These keys are found by a search that asks for 16 sums in one pass. The first pass asks at distances of 1, 2, …: what
   lies nearer than the first that suffices is put aside with its ids, most often a few tokens, and all further passes
   go over that. Where it is too much to put aside, they go over the row.
4. The token is where the cumulated weights, in order of ids, pass a uniform share of their sum.

Sums of a pass are kept in each lane in float32 and added at its end: the same order for every key, so that they rise
with it. Sums over blocks are float64.
"""

import triton
import triton.language as tl


@triton.jit
def _mix64(x):
    """See `model/sampling.py`."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, position):
    """A float64 in [0, 1) for int64 bits of a seed and a position."""
    key = _mix64(seed.to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15)
    bits = _mix64(key + (position.to(tl.uint64, bitcast=True) + 1) * 0x9E3779B97F4A7C15)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _add_bias(row, begin, end, bias_ids, bias_values, BLOCK: tl.constexpr):
    for first in range(begin, end, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < end
        place = row + tl.load(bias_ids + i, mask=inside, other=0)
        held = tl.load(place, mask=inside, other=0.0)
        tl.store(place, held + tl.load(bias_values + i, mask=inside, other=0.0), mask=inside)
    tl.debug_barrier()


@triton.jit
def _penalise(x, counts, repetition, frequency, presence, IN_PROMPT: tl.constexpr):
    times = (counts & (IN_PROMPT - 1)).to(tl.float32)
    x = tl.where(counts != 0, tl.where(x > 0, tl.div_rn(x, repetition), x * repetition), x)
    x = x - frequency * times
    return x - tl.where(times > 0, presence, 0.0)


@triton.jit
def _keys(row, scratch, aside, i, inside, largest, temperature, CANDIDATES: tl.constexpr):
    """Keys and ids of the row's tokens, or of those put aside; where there is none the key is past all others."""
    if aside:
        key = tl.load(scratch + i, mask=inside, other=0x7FFFFFFF)
        ids = tl.load(scratch + CANDIDATES + i, mask=inside, other=0)
    else:
        x = tl.load(row + i, mask=inside, other=float("-inf"))
        key = tl.div_rn(x - largest, temperature).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        ids = i
    return key, ids


@triton.jit
def _weights(key, limit):
    """Of keys up to the limit; 0 past it."""
    return tl.where(key <= limit, tl.exp(-key.to(tl.float32, bitcast=True)), 0.0)


@triton.jit
def _sums(
    row, scratch, aside, count, largest, temperature, limits, by_weight, CANDIDATES: tl.constexpr, BLOCK: tl.constexpr
):
    """For each of 16 limits how many tokens have keys up to it, or their weight: float32 `[16]`."""
    lanes = tl.zeros([16, BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        i = first + tl.arange(0, BLOCK)
        key, _ = _keys(row, scratch, aside, i, i < count, largest, temperature, CANDIDATES)
        each = tl.where(by_weight, tl.exp(-key.to(tl.float32, bitcast=True)), 1.0)
        lanes += tl.where(key[None, :] <= limits[:, None], each[None, :], 0.0)
    return tl.sum(lanes, 1)


@triton.jit
def _search(
    row,
    scratch,
    aside,
    count,
    largest,
    temperature,
    high,
    target,
    by_weight,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The smallest key up to which the sum reaches the target; `high` if it doesn't before."""
    low = -1
    while high - low > 1:
        step = (high - low - 1) // 16 + 1
        limits = low + step * (1 + tl.arange(0, 16))
        limits = tl.where((limits > high) | (limits < low), high, limits)
        enough = _sums(row, scratch, aside, count, largest, temperature, limits, by_weight, CANDIDATES, BLOCK) >= target
        low = tl.max(tl.where(enough | (limits == high), low, limits))
        high = tl.min(tl.where(enough, limits, high))
    return high


@triton.jit
def _put_aside(row, scratch, vocab_size, largest, temperature, limit, CANDIDATES: tl.constexpr, BLOCK: tl.constexpr):
    """Write keys up to the limit, and their ids, to the scratch, in order of ids. How many there are, which may be more
    than it has room for."""
    count = 0
    for first in range(0, vocab_size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        key, _ = _keys(row, scratch, False, i, i < vocab_size, largest, temperature, CANDIDATES)
        near = key <= limit
        place = count + tl.cumsum(near.to(tl.int32), 0) - 1
        kept = near & (place < CANDIDATES)
        tl.store(scratch + place, key, mask=kept)
        tl.store(scratch + CANDIDATES + place, i, mask=kept)
        count += tl.sum(near.to(tl.int32), 0)
    tl.debug_barrier()
    return count


@triton.jit
def _block_weight(
    row,
    scratch,
    aside,
    first,
    count,
    largest,
    temperature,
    limit,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = first + tl.arange(0, BLOCK)
    key, _ = _keys(row, scratch, aside, i, i < count, largest, temperature, CANDIDATES)
    return tl.sum(_weights(key, limit), 0).to(tl.float64)


@triton.jit
def _pick(
    row,
    scratch,
    aside,
    count,
    largest,
    temperature,
    limit,
    uniform,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The token where the cumulated weight of keys up to the limit passes the uniform share of the whole."""
    total = tl.zeros([], tl.float64)
    for first in range(0, count, BLOCK):
        total += _block_weight(row, scratch, aside, first, count, largest, temperature, limit, CANDIDATES, BLOCK)
    # Just below the total at most, so that rounding never leads past the last token that has a weight.
    target = tl.minimum(uniform * total, total * 0.9999999999999999)
    begin = 0
    before = tl.zeros([], tl.float64)
    weight = _block_weight(row, scratch, aside, 0, count, largest, temperature, limit, CANDIDATES, BLOCK)
    while (before + weight <= target) & (begin + BLOCK < count):
        before += weight
        begin += BLOCK
        weight = _block_weight(row, scratch, aside, begin, count, largest, temperature, limit, CANDIDATES, BLOCK)
    lane = tl.arange(0, BLOCK)
    i = begin + lane
    key, ids = _keys(row, scratch, aside, i, i < count, largest, temperature, CANDIDATES)
    weights = _weights(key, limit).to(tl.float64)
    passed = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
    place = tl.min(tl.where(passed, lane, BLOCK))
    last = tl.max(tl.where(weights > 0, lane, 0))
    return tl.sum(tl.where(lane == tl.minimum(place, last), ids, 0))


@triton.jit
def _draw(
    row,
    scratch,
    vocab_size,
    largest,
    temperature,
    top_k,
    top_p,
    min_p,
    uniform,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A token of a row whose largest logit is a number."""
    # All finite keys, or those that min_p leaves.
    limit = 0x7F7FFFFF
    if min_p > 0:
        limit = tl.log(min_p).to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    aside, count = False, vocab_size
    limited = (top_k > 0) & (top_k < vocab_size)
    if limited | (top_p < 1):
        by_weight = top_k <= 0
        by_weight |= top_k >= vocab_size
        nearness = 1 + tl.arange(0, 16)
        limits = tl.minimum(nearness.to(tl.float32).to(tl.int32, bitcast=True), limit)
        limits = tl.where(nearness == 16, limit, limits)
        sums = _sums(row, scratch, False, vocab_size, largest, temperature, limits, by_weight, CANDIDATES, BLOCK)
        whole = tl.max(sums)
        target = tl.where(by_weight, whole.to(tl.float64) * top_p, top_k.to(tl.float64))
        near = tl.min(tl.where(sums >= target, limits, limit))
        found = _put_aside(row, scratch, vocab_size, largest, temperature, near, CANDIDATES, BLOCK)
        if found <= CANDIDATES:
            aside, count = True, found
        if limited & (whole >= target):
            limit = _search(row, scratch, aside, count, largest, temperature, near, target, False, CANDIDATES, BLOCK)
        if top_p < 1:
            if limited:
                limits = tl.full([16], 0, tl.int32) + limit
                sums = _sums(row, scratch, aside, count, largest, temperature, limits, True, CANDIDATES, BLOCK)
                target = tl.max(sums).to(tl.float64) * top_p
            high = tl.minimum(limit, near)
            limit = _search(row, scratch, aside, count, largest, temperature, high, target, True, CANDIDATES, BLOCK)
    return _pick(row, scratch, aside, count, largest, temperature, limit, uniform, CANDIDATES, BLOCK)


@triton.jit
def _shape(
    row, masks, mask_row, mask_stride, counts, penalised, repeated, often, present, vocab_size,
    IN_PROMPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Apply a mask and penalties in place. The largest logit, the first token that has it, whether a NaN is left."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.full([BLOCK], 0x7FFFFFFF, tl.int32)
    odd = tl.zeros([BLOCK], tl.int32)
    for first in range(0, vocab_size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < vocab_size
        x = tl.load(row + i, mask=inside, other=float("-inf"))
        if masks is not None:
            word = tl.load(masks + mask_row * mask_stride + i // 32, mask=inside & (mask_row >= 0), other=-1)
            x = tl.where((word >> (i % 32)) & 1 != 0, x, float("-inf"))
        if counts is not None:
            if penalised:
                x = _penalise(x, tl.load(counts + i, mask=inside, other=0), repeated, often, present, IN_PROMPT)
        if (mask_row >= 0) | penalised:
            tl.store(row + i, x, mask=inside)
        odd |= (x != x).to(tl.int32)
        better = x > best
        best = tl.where(better, x, best)
        best_id = tl.where(better, i, best_id)
    tl.debug_barrier()
    largest = tl.max(best)
    return largest, tl.min(tl.where(best == largest, best_id, 0x7FFFFFFF)), tl.max(odd) != 0


@triton.jit
def sample_row(
    logits, slots, tokens, status, scratch,
    temperature, top_k, top_p, min_p, seeds, positions, repetition, frequency, presence, counts,
    bias_starts, bias_ids, bias_values, mask_rows, masks,
    mask_stride, vocab_size, logits_stride, counts_stride,
    TAKE: tl.constexpr, IN_PROMPT: tl.constexpr, CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + at)
    row = logits + at * logits_stride
    if bias_starts is not None:
        _add_bias(row, tl.load(bias_starts + at), tl.load(bias_starts + at + 1), bias_ids, bias_values, BLOCK)
    mask_row, penalised = -1, False
    repeated, often, present = 1.0, 0.0, 0.0
    if mask_rows is not None:
        mask_row = tl.load(mask_rows + at)
    if counts is not None:
        counts += slot * counts_stride
        repeated, often = tl.load(repetition + slot), tl.load(frequency + slot)
        present = tl.load(presence + slot)
        penalised = (repeated != 1.0) | (often != 0.0) | (present != 0.0)
    largest, token, broken = _shape(
        row, masks, mask_row, mask_stride, counts, penalised, repeated, often, present, vocab_size, IN_PROMPT, BLOCK
    )
    broken |= largest == float("inf")
    ruled_out = largest == float("-inf")
    warmth = tl.load(temperature + slot).to(tl.float32)
    usable = (broken == 0) & (ruled_out == 0)
    if usable:
        if warmth > 0:
            token = _draw(
                row, scratch + at * (2 * CANDIDATES), vocab_size, largest, tl.maximum(warmth, 1e-30),
                tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot),
                _uniform(tl.load(seeds + slot), tl.load(positions + slot)), CANDIDATES, BLOCK,
            )  # fmt: skip
        if TAKE and counts is not None:
            if penalised:
                tl.store(counts + token, tl.load(counts + token) + 1)
    tl.store(tokens + at, tl.where(usable, token, 0).to(tl.int64))
    tl.store(status + at, tl.where(broken, 1, tl.where(ruled_out, 2, 0)))
