"""Which tiles the attention kernel is compiled for: a table by shape, read once for each launch.

Pure numbers, no torch and no triton. A tile is `block_m` query rows (queries times the heads that share a key) against
`block_n` keys at a time. A model meets at most three of the table's rows, so that no request waits for a search; every
row is compiled for each kind of chip and looked at by `python -m bench.gpu.kernels`.
"""

import attrs

from ...launch import next_power_of_2


@attrs.frozen
class Tiles:
    """How a launch is cut up."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


HEAD_PADS = (64, 128, 256)
"""Head sizes are padded to one of these."""
FEW_ROWS, SOME_ROWS, MANY_ROWS = 16, 64, 128
"""Query rows of a tile: one query and its heads, short chunks, long ones."""

_TABLE = {
    (64, FEW_ROWS): Tiles(16, 64, 4, 3),
    (64, SOME_ROWS): Tiles(64, 64, 4, 3),
    (64, MANY_ROWS): Tiles(128, 64, 8, 3),
    (128, FEW_ROWS): Tiles(16, 64, 4, 3),
    (128, SOME_ROWS): Tiles(64, 64, 4, 2),
    (128, MANY_ROWS): Tiles(128, 64, 8, 2),
    (256, FEW_ROWS): Tiles(16, 32, 4, 2),
    (256, SOME_ROWS): Tiles(64, 32, 8, 2),
    (256, MANY_ROWS): Tiles(64, 32, 8, 2),
}
"""(padded head size, query rows) → tiles, for 16-bit queries."""
_INSTEAD = {
    (80, 64, SOME_ROWS, False): Tiles(64, 64, 4, 2),
    (80, 128, MANY_ROWS, False): Tiles(128, 32, 8, 3),
    (100, 64, MANY_ROWS, False): Tiles(128, 64, 8, 2),
    (100, 64, MANY_ROWS, True): Tiles(128, 64, 8, 2),
    (80, 128, SOME_ROWS, False): Tiles(64, 32, 4, 3),
    (80, 128, SOME_ROWS, True): Tiles(64, 64, 8, 2),
    (80, 128, MANY_ROWS, True): Tiles(128, 32, 8, 3),
    (100, 128, MANY_ROWS, True): Tiles(128, 64, 8, 3),
    (100, 256, SOME_ROWS, False): Tiles(64, 32, 4, 2),
    (100, 256, SOME_ROWS, True): Tiles(64, 32, 4, 2),
    (100, 256, MANY_ROWS, False): Tiles(64, 32, 4, 2),
    (100, 256, MANY_ROWS, True): Tiles(64, 32, 4, 2),
}
"""(generation of the chip, padded head size, query rows, whether the cache is fp8) → tiles where the table's own would
spill registers."""
_FLOAT32 = Tiles(16, 16, 4, 1)
"""32-bit queries are multiplied without tensor cores: right, not fast."""

MIN_SPLIT_KEYS = 256
"""A split has at least so many keys: below that its share of the reduction costs more than it saves."""
MAX_SPLITS = 32
_PROGRAMS = 4
"""Programs that a processor has room for: so many are kept busy before a split pays."""


def choose_tiles(
    *, head_dim: int, group: int, max_query_length: int, element_bytes: int, fp8: bool = False, chip: int = 90
) -> Tiles:
    """The tiles for a step whose longest chunk has `max_query_length` queries; `group` heads share a key, queries have
    `element_bytes`, and `chip` is the device's compute capability."""
    head_pad = max(HEAD_PADS[0], next_power_of_2(head_dim))
    if head_pad > HEAD_PADS[-1]:
        raise AssertionError(f"heads of {head_dim} dimensions are wider than the attention kernel's tiles")
    rows = max_query_length * group
    kind = next((kind for kind in (FEW_ROWS, SOME_ROWS) if rows <= kind), MANY_ROWS)
    generation = 80 if chip < 90 else 90 if chip < 100 else 100
    tiles = _INSTEAD.get((generation, head_pad, kind, fp8), _TABLE[head_pad, kind])
    if element_bytes == 4:
        tiles = _FLOAT32
    return attrs.evolve(tiles, block_m=max(tiles.block_m, next_power_of_2(group)))


def choose_splits(*, num_tiles: int, num_kv_heads: int, max_context_length: int, num_processors: int) -> int:
    """Into how many parts the keys of each tile go, a power of two: 1 where the tiles alone keep the chip busy."""
    wanted = _PROGRAMS * num_processors // max(1, num_tiles * num_kv_heads)
    splits = min(wanted, max_context_length // MIN_SPLIT_KEYS, MAX_SPLITS)
    return 1 << max(0, splits.bit_length() - 1)
