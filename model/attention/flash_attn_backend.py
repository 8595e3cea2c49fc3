"""The `flash_attn` backend: FlashAttention 2 over our paged cache, where the package is installed.

Its kernels take pages of 256 tokens or a multiple (`--block-size 256`), 16-bit numbers and a GPU from Ampere on.
https://github.com/Dao-AILab/flash-attention
"""

from importlib.util import find_spec

import attrs
from torch import Tensor

from ...engine.core.errors import ConfigurationError
from ..kv import KVTensors
from .interface import AttentionShape, StepLayout
from .paged_library import PagedLibrary
from .pages import pages_of

PAGE = 256
"""Its kernels read pages of a multiple of this many tokens."""


@attrs.frozen(kw_only=True, eq=False)
class _View:
    """What layers of one group and window hand over."""

    query_starts: Tensor
    key_starts: Tensor
    most_queries: int
    most_keys: int
    tables: Tensor


@attrs.frozen(kw_only=True, eq=False)
class FlashMetadata:
    """One step."""

    write_slots: tuple[Tensor, ...]
    views: dict[tuple[int, int | None], _View]


class FlashAttention(PagedLibrary):
    """See the module's docstring."""

    name = "flash_attn"

    def __init__(self, shape: AttentionShape, kv: KVTensors) -> None:
        super().__init__(shape, kv)
        if kv.block_size % PAGE:
            raise ConfigurationError(
                f"--attention-backend flash_attn reads pages of {PAGE} tokens: set --block-size {PAGE}, or choose "
                f"--attention-backend triton."
            )
        from flash_attn import flash_attn_varlen_func

        self._attend = flash_attn_varlen_func

    @classmethod
    def unusable(cls, device_type: str) -> str | None:
        if find_spec("flash_attn") is None:
            return "flash_attn is not installed (pip install flash-attn --no-build-isolation)"
        return None if device_type == "cuda" else f"it runs on an NVIDIA GPU, not on {device_type}"

    def prepare(self, layout: StepLayout) -> FlashMetadata:
        views = {}
        for group, window in dict.fromkeys(self.kinds):
            pages = pages_of(layout, group, window, self.kv.block_size)
            views[group, window] = _View(
                query_starts=self.to_device(pages.query_starts),
                key_starts=self.to_device(pages.key_starts),
                most_queries=int(layout.query_lengths.max()),
                most_keys=int(pages.lengths.max()),
                tables=self.to_device(pages.tables),
            )
        return FlashMetadata(write_slots=self.write_slots(layout), views=views)

    def write(self, layer: int, keys: Tensor, values: Tensor, metadata: FlashMetadata) -> None:
        self.store(layer, keys, values, metadata.write_slots)

    def attend(self, layer: int, queries: Tensor, metadata: FlashMetadata) -> Tensor:
        kind = self.kinds[layer]
        view, (keys, values) = metadata.views[kind], self.halves(layer)
        window = kind[1]
        outputs: Tensor = self._attend(
            queries,
            keys,
            values,
            view.query_starts,
            view.key_starts,
            view.most_queries,
            view.most_keys,
            softmax_scale=self.shape.head_dim**-0.5,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=view.tables,
        )
        return outputs
