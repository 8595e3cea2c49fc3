"""A device's cost, measured: from steps whose shape and time are known to a formula for steps of any shape.

Pure. The time of a step is taken to be a sum: a function of its tokens that rises piecewise linearly (the matrix
products), so much for each token given (the output head), and so much for each attended pair (attention). No part is
negative, so what is fitted stays sensible between and beyond the shapes that were measured.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs

from .cost import StepShape

KNOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Tokens of a step between which its time rises linearly; beyond the last as before it."""
SWEEPS = 3000
ROUNDS = 4
LEAST_S = 1e-6

Feature = Callable[[StepShape], float]


@attrs.frozen(kw_only=True)
class MeasuredCost:
    """Seconds of a step, by its shape: a `StepCost` that can be written down as JSON."""

    knots: tuple[int, ...]
    """Tokens of a step, rising."""
    seconds: tuple[float, ...]
    """At each knot, without attention and output head."""
    per_sampled_s: float
    per_pair_s: float

    def __attrs_post_init__(self) -> None:
        if len(self.knots) != len(self.seconds) or len(self.knots) < 2 or list(self.knots) != sorted(set(self.knots)):
            raise ValueError("a measured cost needs rising knots, at least two, and the seconds at each")

    def __call__(self, shape: StepShape) -> float:
        return self._matrices(shape.num_tokens) + self._rest(shape)

    def _rest(self, shape: StepShape) -> float:
        return self.per_sampled_s * shape.num_sampled + self.per_pair_s * shape.num_pairs

    def _matrices(self, num_tokens: int) -> float:
        place = max(1, sum(knot < num_tokens for knot in self.knots[:-1]))
        (low, high), (at_low, at_high) = self.knots[place - 1 : place + 1], self.seconds[place - 1 : place + 1]
        return at_low + (at_high - at_low) * (num_tokens - low) / (high - low)


def fit_cost(measured: Sequence[tuple[StepShape, float]], knots: Sequence[int] = KNOTS) -> MeasuredCost:
    """The cost that comes nearest to what was measured, relative to what it says of each step itself: relative to the
    measured time slow steps would count less than quick ones, and the sum would be too small. Raises ValueError for
    nothing."""
    if not measured:
        raise ValueError("no step was measured")
    features: list[Feature] = [lambda shape: 1.0]
    features += [_ramp(low, high) for low, high in pairwise((*knots[:-1], float("inf")))]
    features += [lambda shape: float(shape.num_sampled), lambda shape: float(shape.num_pairs)]
    rows = [[feature(shape) for feature in features] for shape, _ in measured]
    times = expected = [seconds for _, seconds in measured]
    for _ in range(ROUNDS):
        found = _not_negative_least_squares(
            [[value / scale for value in row] for row, scale in zip(rows, expected, strict=True)],
            [seconds / scale for seconds, scale in zip(times, expected, strict=True)],
        )
        said = (sum(value * x for value, x in zip(row, found, strict=True)) for row in rows)
        expected = [max(seconds, LEAST_S) for seconds in said]
    constant, slopes, (per_sampled_s, per_pair_s) = found[0], found[1:-2], found[-2:]
    seconds = [constant]
    for (low, high), slope in zip(pairwise(knots), slopes, strict=True):
        seconds.append(seconds[-1] + slope * (high - low))
    return MeasuredCost(knots=tuple(knots), seconds=tuple(seconds), per_sampled_s=per_sampled_s, per_pair_s=per_pair_s)


def _ramp(low: float, high: float) -> Feature:
    """How far the tokens of a step reach into [low, high)."""
    return lambda shape: min(max(shape.num_tokens - low, 0.0), high - low)


def _not_negative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """x >= 0 for which the rows times x are nearest to the targets: by one coordinate after the other."""
    size = range(len(rows[0]))
    products = [[sum(row[i] * row[j] for row in rows) for j in size] for i in size]
    sums = [sum(row[i] * target for row, target in zip(rows, targets, strict=True)) for i in size]
    found = [0.0 for _ in size]
    for _ in range(SWEEPS):
        for i in size:
            if products[i][i] > 0:
                missing = sums[i] - sum(products[i][j] * found[j] for j in size)
                found[i] = max(0.0, found[i] + missing / products[i][i])
    return found
