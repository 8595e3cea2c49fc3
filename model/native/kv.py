"""The KV cache in the kernels' layout (kv_cache.h): one allocation for all layers, written and read by them alone.

As in `model/kv.py`, the i-th layers of all groups share the i-th part. Memory that was never written takes no pages,
but for what `prefault` takes in advance.
"""

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..spec import ModelSpec
from .library import Format, Library, check

TILE_TOKENS = 16
SCALE_BYTES = 4


def why_unfit_block(block_size: int) -> str | None:
    """Why the kernels cannot use such blocks, or None if they can."""
    return f"--block-size {block_size} is not a multiple of {TILE_TOKENS}" if block_size % TILE_TOKENS else None


class NativeKV:
    """Owns the memory. Used by the device thread alone."""

    def __init__(
        self,
        library: Library,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        format: Format,
        layer_groups: Sequence[int] | None = None,
    ) -> None:
        """`layer_groups` names the group of each layer; None puts all layers into group 0. Raises ValueError."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.format = format
        self.layer_groups = tuple(layer_groups) if layer_groups is not None else (0,) * spec.num_layers
        self.num_groups = max(self.layer_groups) + 1
        if len(self.layer_groups) != spec.num_layers or set(self.layer_groups) != set(range(self.num_groups)):
            raise ValueError(f"layer_groups {self.layer_groups} do not number the groups of {spec.num_layers} layers")
        self.layer_tensors = tuple(self.layer_groups[:i].count(group) for i, group in enumerate(self.layer_groups))
        """Which part of the memory each layer uses."""
        self._library = library
        self.handle = ctypes.c_void_p()
        check(
            library.new_cache(
                ctypes.byref(self.handle),
                format,
                max(self.layer_tensors) + 1,
                num_blocks,
                block_size,
                spec.num_kv_heads,
                spec.head_dim,
            ),
            ValueError,
        )
        self._prefaults: list[ctypes.c_void_p] = []
        weakref.finalize(self, _free, library, self.handle, self._prefaults)

    def prefault(self, num_bytes: int) -> None:
        """Take the pages of the first blocks, so many bytes of them over all layers, in a native thread of the lowest
        priority, so that no step has to wait for them. At most once. Raises ValueError for less than one byte.
        It ends by itself, at the latest when the cache goes; where the kernel cannot do it, at once."""
        if self._prefaults:
            raise ValueError("the pages are being taken already")
        handle = ctypes.c_void_p()
        check(self._library.start_prefault(ctypes.byref(handle), self.handle, num_bytes), ValueError)
        self._prefaults.append(handle)

    def wait_prefault(self) -> int:
        """Until `prefault` has done what it can; the bytes taken. For tests and benchmarks."""
        return sum(self._library.wait_prefault(handle) for handle in self._prefaults)

    @property
    def num_bytes(self) -> int:
        size: int = self._library.cache_bytes(self.handle)
        return size

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """All of it, a view `[parts, num_blocks, bytes of a block]`, for tests."""
        size: int = self._library.block_bytes(self.handle)
        pointer = ctypes.cast(self._library.cache_data(self.handle), ctypes.POINTER(ctypes.c_uint8))
        flat = np.ctypeslib.as_array(pointer, (self.num_bytes,))
        return flat.reshape(-1, self.num_blocks, size)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in all layers; every source is read before any target is written."""
        if len(sources) != len(targets):
            raise AssertionError(f"{len(sources)} blocks to copy, but {len(targets)} targets")
        if not sources:
            return
        for block in (*sources, *targets):
            if not 0 <= block < self.num_blocks:
                raise AssertionError(f"block {block} is to be copied, but there are {self.num_blocks} blocks")
        read, write = np.array(sources, np.int64), np.array(targets, np.int64)
        check(self._library.copy_blocks(self.handle, read.ctypes.data, write.ctypes.data, len(sources)))


def _free(library: Library, cache: ctypes.c_void_p, prefaults: list[ctypes.c_void_p]) -> None:
    for prefault in prefaults:
        library.end_prefault(prefault)
    library.free_cache(cache)


def element_width(format: Format, head_dim: int) -> tuple[int, int]:
    """(values of a head, bytes of each) as the sizing of the cache counts them; int8 has a scale for each K and V."""
    if format is Format.INT8:
        return head_dim + SCALE_BYTES, 1
    return head_dim, 4 if format is Format.FLOAT32 else 2
