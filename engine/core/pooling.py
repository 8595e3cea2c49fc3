"""What a vector is to be made of: `Pooling`, checked once, where the request enters.

Pure. A request with a pooling generates nothing: its prompt is computed, and what the model's last norm gives at its
positions becomes one vector.
"""

import sys
from array import array
from typing import Any, Literal, get_args

import attrs

from .errors import InvalidRequest

PoolingKind = Literal["last", "mean"]
POOLINGS: tuple[PoolingKind, ...] = get_args(PoolingKind)


def _check_kind(_: object, __: object, value: Any) -> None:
    if value not in POOLINGS:
        raise InvalidRequest(f"pooling must be one of {', '.join(POOLINGS)}, not {value!r}.", param="pooling")


def _check_dimensions(_: object, __: object, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidRequest(f"dimensions must be an integer of at least 1, not {value!r}.", param="dimensions")


@attrs.frozen(kw_only=True)
class Pooling:
    """From the hidden states of a prompt's tokens to one vector."""

    kind: PoolingKind = attrs.field(default="last", validator=_check_kind)
    """The state of the last token, or the mean over all of them."""
    dimensions: int | None = attrs.field(default=None, validator=_check_dimensions)
    """Keep so many of the first numbers; None: all. At most the model's hidden size."""
    normalize: bool = True
    """Make the vector one long, after it has been cut."""

    @property
    def needs_every_state(self) -> bool:
        """The prompt is computed from its first token on: a cached beginning has K and V and no states."""
        return self.kind == "mean"

    def check(self, hidden_size: int) -> None:
        """Raises InvalidRequest where the model has fewer dimensions."""
        if self.dimensions is not None and self.dimensions > hidden_size:
            raise InvalidRequest(
                f"dimensions must be from 1 to {hidden_size}, the model's hidden size, not {self.dimensions}.",
                param="dimensions",
            )


def numbers_of(vector: bytes) -> list[float]:
    """A vector as it is carried (float32, little-endian) as numbers."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
