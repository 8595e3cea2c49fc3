"""What the prefix index holds, told as it changes: for a router, a picture, or a test that keeps a copy (K14)."""

from array import array
from collections.abc import Callable, Sequence

import attrs

from .hashing import HashChain
from .ids import BlockId


@attrs.frozen(kw_only=True)
class BlocksStored:
    """Blocks whose content can be matched from now on, as parallel columns in the order of the sequence."""

    group: int
    blocks: tuple[BlockId, ...]
    hashes: tuple[bytes, ...]
    parent_hashes: tuple[bytes, ...]
    """The hash of the block before; for a first block the encoding of the extra keys, empty without any."""
    token_ids: tuple[tuple[int, ...], ...]


@attrs.frozen(kw_only=True)
class BlocksEvicted:
    """Content that cannot be matched any more: its block was given away or written, or the cache was reset."""

    group: int
    blocks: tuple[BlockId, ...]
    hashes: tuple[bytes, ...]


CacheEvent = BlocksStored | BlocksEvicted
Listener = Callable[[CacheEvent], None]


class CacheEvents:
    """The listeners. Nothing is built while there is none."""

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._num_subscribed = 0

    @property
    def wanted(self) -> bool:
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._num_subscribed += 1
        key = self._num_subscribed
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def stored(self, group: int, table: Sequence[BlockId | None], chain: HashChain, places: Sequence[int]) -> None:
        """The blocks at `places` of `table` were indexed under the hashes of `chain`."""
        parents, tokens = [], []
        for place in places:
            preimage = chain.preimages[place]
            parent = chain.hashes[place - 1] if place else chain.root
            parents.append(parent)
            tokens.append(tuple(array("I", preimage[len(parent) :])))
        self._say(
            BlocksStored(
                group=group,
                blocks=tuple(block for place in places if (block := table[place]) is not None),
                hashes=tuple(chain.hashes[place] for place in places),
                parent_hashes=tuple(parents),
                token_ids=tuple(tokens),
            )
        )

    def evicted(self, group: int, content_hash: bytes, block: BlockId) -> None:
        self._say(BlocksEvicted(group=group, blocks=(block,), hashes=(content_hash,)))

    def _say(self, event: CacheEvent) -> None:
        for listener in tuple(self._listeners.values()):
            listener(event)
