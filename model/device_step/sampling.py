"""Choosing tokens without leaving the device: `model/sampling.py` in operations that a graph can hold.

Imports torch. The same filters, the same order, the same draw of (seed, position); every row is treated alike, whatever
it asks for, so that nothing depends on who is in the batch.
"""

import attrs
import torch
from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class DeviceSampling:
    """What each row of the logits asks for: columns on the device, as `SamplingRows` has them on the host."""

    temperature: Tensor
    """float64; 0 is greedy."""
    top_k: Tensor
    """int64; below 1: all."""
    top_p: Tensor
    min_p: Tensor
    """float64, both."""
    seeds: Tensor
    """int64, the bits of the unsigned seed."""
    positions: Tensor
    """int64: of the token that is sampled."""
    all_greedy: bool = False
    """Known on the host: no row has a temperature."""


def sample_on_device(logits: Tensor, rows: DeviceSampling) -> tuple[Tensor, Tensor]:
    """A token for each row of float32 logits `[n, vocab_size]`, and 1 where they could be used: no NaN, no +inf, and
    something above -inf."""
    largest, best = logits.max(-1)  # the first of equals
    usable = torch.isfinite(largest)
    if rows.all_greedy:
        return torch.where(usable, best, 0), usable.long()
    drawn = _draw(torch.where(usable[:, None], logits, 0), torch.where(usable, largest, 0), rows)
    tokens = torch.where(rows.temperature == 0, best, drawn)
    return torch.where(usable, tokens, 0), usable.long()


def _draw(logits: Tensor, largest: Tensor, rows: DeviceSampling) -> Tensor:
    vocab = logits.shape[1]
    scaled = (logits - largest[:, None]) / rows.temperature.to(torch.float32).clamp(min=1e-30)[:, None]
    falling = scaled.sort(-1, descending=True).values
    floor = rows.min_p.log().to(torch.float32)
    kth = falling.gather(1, rows.top_k.clamp(1, vocab)[:, None] - 1).squeeze(1)
    floor = torch.where((rows.top_k > 0) & (rows.top_k < vocab), torch.maximum(floor, kth), floor)
    inside = (falling.exp() * (falling >= floor[:, None])).double()
    reached = inside.cumsum(-1)
    needed = (reached - inside < reached[:, -1:] * rows.top_p[:, None]) & (inside > 0)
    least = falling.gather(1, (needed.sum(-1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
    floor = torch.where(rows.top_p < 1, torch.maximum(floor, least), floor)
    weights = (scaled.exp() * (scaled >= floor[:, None])).double()
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1]
    target = uniforms_on_device(rows.seeds, rows.positions) * total
    # Just below the total, so that rounding never leads past the last token that has a weight.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, target[:, None], right=True).squeeze(1).clamp(max=vocab - 1)


def uniforms_on_device(seeds: Tensor, positions: Tensor) -> Tensor:
    """`sampling.uniforms`, bit for bit, in int64 arithmetic modulo 2**64."""
    golden = _signed(0x9E3779B97F4A7C15)
    key = _mix64(seeds + golden)
    bits = _mix64(key + (positions + 1) * golden)
    return _shifted(bits, 11).double() * 2.0**-53


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, count: int) -> Tensor:
    """To the right, with zeros coming in: torch's own shift repeats the sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
