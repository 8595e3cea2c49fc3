"""The chained hash that names the content of a full block: its own tokens and everything before them.

A block's K and V depend on every token of the prefix, so its name is the hash of (name of the block before, its own
token ids); the first block's parent is the root, which encodes the extra keys (cache salt, adapter id, …). What was
hashed (the preimage) is kept beside the hash: an index that compares preimages is not fooled by a collision.
Token ids are packed in the machine's byte order; hashes are not meant to travel between machines of different order.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence

TOKEN_BYTES = 4
"""A token id is packed as an unsigned 32-bit number."""

Digest = Callable[[bytes], bytes]


def sha256(preimage: bytes) -> bytes:
    """The digest in use; tests put in a weak one to force collisions."""
    return hashlib.sha256(preimage).digest()


def root_of(extra_keys: tuple[str | int | bytes, ...]) -> bytes:
    """An injective encoding of the extra keys: type, length, value of each. No keys: the empty root."""
    parts = []
    for key in extra_keys:
        if isinstance(key, bytes):
            kind, value = b"b", key
        elif isinstance(key, str):
            kind, value = b"s", key.encode("utf-8", "surrogatepass")
        elif isinstance(key, int):
            kind, value = b"i", b"%d" % key
        else:
            raise TypeError(f"an extra key is a str, an int or bytes, not {type(key).__name__}")
        parts.append(b"%s%d:%s" % (kind, len(value), value))
    return b"".join(parts)


class HashChain:
    """The hashes of one sequence's full blocks: computed once, extended as the sequence grows.

    `hashes[i]` names block i, `preimages[i]` is what was hashed for it. The caller promises that tokens already hashed
    do not change, except after `trim`.
    """

    __slots__ = ("_block_size", "_digest", "hashes", "preimages", "root")

    def __init__(self, root: bytes, block_size: int, digest: Digest = sha256) -> None:
        self.root = root
        self.hashes: list[bytes] = []
        self.preimages: list[bytes] = []
        self._block_size = block_size
        self._digest = digest

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Hash the blocks up to `num_blocks` that have not been hashed yet; `token_ids` holds at least their tokens."""
        hashes, preimages = self.hashes, self.preimages
        done = len(hashes)
        if num_blocks <= done:
            return
        data = array("I", token_ids[done * self._block_size : num_blocks * self._block_size]).tobytes()
        width = self._block_size * TOKEN_BYTES
        if len(data) != (num_blocks - done) * width:
            raise ValueError(f"{num_blocks} blocks of {self._block_size} need more than {len(token_ids)} tokens")
        parent = hashes[-1] if hashes else self.root
        if self._digest is sha256:
            # Inlined: the call would cost a quarter of the hash.
            for offset in range(0, len(data), width):
                preimage = parent + data[offset : offset + width]
                parent = hashlib.sha256(preimage).digest()
                preimages.append(preimage)
                hashes.append(parent)
            return
        for offset in range(0, len(data), width):
            preimage = parent + data[offset : offset + width]
            parent = self._digest(preimage)
            preimages.append(preimage)
            hashes.append(parent)

    def trim(self, num_blocks: int) -> None:
        """Forget the hashes past `num_blocks`: the tokens there may change."""
        del self.hashes[num_blocks:]
        del self.preimages[num_blocks:]

    def copy(self) -> "HashChain":
        """A chain of its own with the same beginning."""
        twin = HashChain(self.root, self._block_size, self._digest)
        twin.hashes = self.hashes.copy()
        twin.preimages = self.preimages.copy()
        return twin
