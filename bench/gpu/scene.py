"""Random steps over a paged cache, on a device: what attention is checked and timed with."""

import attrs
import torch

from triolet.model.attention.triton.step import AttentionTerms, PagedBatch


@attrs.frozen(kw_only=True)
class Case:
    """Sequences as (queries, context)."""

    sequences: tuple[tuple[int, int], ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int | None = None
    fp8: bool = False


class Scene:
    """The tensors of a case: blocks in a scattered order, as a server has them after a while."""

    def __init__(self, case: Case, device: torch.device, dtype: torch.dtype) -> None:
        counts = [-(-context // case.block_size) for _, context in case.sequences]
        order = torch.randperm(sum(counts) + 1)
        tables = torch.full((len(counts), max(counts)), -1, dtype=torch.int32)
        at = 0
        for i, count in enumerate(counts):
            tables[i, :count] = order[at : at + count]
            at += count
        shape = (sum(counts) + 1, case.block_size, 2, case.num_kv_heads, case.head_dim)
        kv = torch.randn(shape, device=device, dtype=dtype)
        self.kv = kv.to(torch.float8_e4m3fn) if case.fp8 else kv
        starts = [0]
        for queries, _ in case.sequences:
            starts.append(starts[-1] + queries)
        self.queries = torch.randn(starts[-1], case.num_heads, case.head_dim, device=device, dtype=dtype)
        self.batch = PagedBatch(
            query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            context_lengths=torch.tensor([c for _, c in case.sequences], dtype=torch.int32, device=device),
            tables=tables.to(device),
            max_query_length=max(queries for queries, _ in case.sequences),
            max_context_length=max(context for _, context in case.sequences),
        )
        self.terms = AttentionTerms(scale=case.head_dim**-0.5, window=case.window)

    @property
    def kv_bytes(self) -> int:
        """What a decode reads at least."""
        tokens = int(self.batch.context_lengths.sum())
        return tokens * self.kv[0, 0].numel() * self.kv.element_size()
