"""What a set of layers with equal visibility needs of the cache."""

import attrs


@attrs.frozen(kw_only=True)
class KVGroup:
    """Layers that see the same positions and therefore share one block table.

    The query at position p sees positions `(p - sliding_window, p]`; all of `[0, p]` when sliding_window is None.
    """

    sliding_window: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(
            attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.ge(1))
        ),
    )

    def first_visible_block(self, position: int, block_size: int) -> int:
        """The first block that the query at `position`, or any later one, can see."""
        if self.sliding_window is None:
            return 0
        return max(0, position - self.sliding_window + 1) // block_size
