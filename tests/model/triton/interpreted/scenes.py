"""Random steps over a paged cache for the attention tests: every slot that is nobody's holds NaN."""

import attrs
import torch

from triolet.model.attention.triton.paged import (
    AttentionTerms,
    PagedBatch,
    paged_attention_launches,
    paged_attention_reference,
)
from triolet.model.attention.triton.tiles import Tiles

from ..interpreter import poison, run_in_both_orders


@attrs.frozen(kw_only=True)
class Step:
    """Sequences as (queries, context); (0, n) computes nothing now, (n, 0) is padding."""

    sequences: tuple[tuple[int, int], ...]
    group: int = 2
    num_kv_heads: int = 1
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    chip: int | None = None
    """An fp8 cache, read as this chip reads it; None: a cache of the queries' dtype."""
    window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    tiles: Tiles | None = None
    splits: int | None = None
    seed: int = 0


class Scene:
    """The tensors of a step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._generator = torch.Generator().manual_seed(step.seed)
        counts = [-(-context // step.block_size) for _, context in step.sequences]
        num_blocks = sum(counts) + 2
        order = torch.randperm(num_blocks, generator=self._generator).tolist()
        tables = torch.full((len(counts), max(counts, default=0) + 1), -1, dtype=torch.int32)
        shape = (num_blocks, step.block_size, 2, step.num_kv_heads, step.head_dim)
        numbers = self.randn(*shape)
        kv = torch.full(shape, float("nan"))
        for i, (queries, context) in enumerate(step.sequences):
            # Blocks that a window has left are in no table any more.
            behind = 0 if step.window is None else max(0, context - queries + 1 - step.window) // step.block_size
            for j in range(behind, counts[i]):
                block, held = order.pop(), min(step.block_size, context - j * step.block_size)
                tables[i, j] = block
                kv[block, :held] = numbers[block, :held]
        self.kv = kv.to(step.dtype if step.chip is None else torch.float8_e4m3fn)
        starts = torch.tensor([0, *(queries for queries, _ in step.sequences)]).cumsum(0)
        heads = step.group * step.num_kv_heads
        # Wider than need be, and with a token at the end that is nobody's.
        self.queries = self.randn(int(starts[-1]) + 1, heads + 3, step.head_dim).to(step.dtype)[:, :heads]
        self.batch = PagedBatch(
            query_starts=starts.to(torch.int32),
            context_lengths=torch.tensor([context for _, context in step.sequences], dtype=torch.int32),
            tables=tables,
            max_query_length=max(queries for queries, _ in step.sequences),
            max_context_length=max(context for _, context in step.sequences),
        )
        scales = (None, None) if step.chip is None else (self.scales(), self.scales())
        self.terms = AttentionTerms(
            scale=step.head_dim**-0.5,
            window=step.window,
            soft_cap=step.soft_cap,
            sinks=self.randn(heads) if step.has_sinks else None,
            key_scale=scales[0],
            value_scale=scales[1],
        )

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def scales(self) -> torch.Tensor:
        return 0.5 + torch.rand(self.step.num_kv_heads, generator=self._generator)

    def check(self) -> None:
        """The kernels' outputs equal the float64 reference up to the dtype's rounding, in both orders of programs;
        tokens of no sequence are left alone."""
        step = self.step
        out = poison(torch.empty(self.queries.shape, dtype=step.dtype))

        def launches():  # type: ignore[no-untyped-def]
            made = paged_attention_launches(
                self.queries,
                self.kv,
                self.batch,
                self.terms,
                out,
                tiles=step.tiles,
                splits=step.splits,
                chip=step.chip,
            )
            for launch in made[:-1]:
                for name in ("parts", "stats"):
                    poison(launch.arguments[name])
            return made

        run_in_both_orders(launches, [out])
        wanted = torch.full(self.queries.shape, float("nan"), dtype=torch.float64)
        paged_attention_reference(self.queries.double(), self.kv, self.batch, self.terms, wanted)
        # Weights and result are rounded to the dtype, values are numbers of a few units.
        eps = max(torch.finfo(step.dtype).eps, 1e-6)
        torch.testing.assert_close(
            out.double(), wanted, rtol=2 * eps, atol=4 * eps, equal_nan=True, msg=lambda said: f"{said}\n{step}"
        )
