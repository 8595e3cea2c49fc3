"""Compile every kernel and every row of its table for each chip, and print what came out. Needs no GPU.

    python -m bench.gpu.kernels [--chip 90] [--only attention]

A row of the table is a kernel as it is launched for a shape; its columns are the chips, with the registers of a thread,
the shared memory of a program in KiB, and the instruction that multiplies matrices. Where a launch has variants (plain,
and with window, cap and sinks) the numbers are the largest. Ends with status 1 if anything spills, is too large for its
chip, or loads and multiplies otherwise than it should.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import torch

from triolet.model.attention.triton.combine import combine_launch
from triolet.model.attention.triton.copy_blocks import BlockCopier
from triolet.model.attention.triton.paged import AttentionTerms, PagedBatch, paged_attention_launches
from triolet.model.attention.triton.rotate_and_write import rotate_and_write_launch
from triolet.model.launch import Launch
from triolet.model.layers.triton.quantize_rows import quantize_rows_launch
from triolet.model.layers.triton.rms_norm import add_rms_norm_launch
from triolet.model.layers.triton.sample import AllowedTokens, SamplingColumns, SparseBias, sample_tokens_launch
from triolet.model.layers.triton.silu_mul import silu_mul_launch

from .ahead import CHIPS, SHARED_BYTES_MAX, Compiled, compile_ahead, empty

FP8 = torch.float8_e4m3fn
HEAD_DIMS = (64, 80, 96, 128, 256)
STEPS = {"decode": 1, "chunk": 16, "prompt": 512}
"""Queries of the longest chunk; with four heads to a key they take the three kinds of tiles."""

Make = Callable[[int], Launch]
"""The launch that a chip gets."""


def attention(
    head_dim: int, queries: int, kv: torch.dtype, *, terms: bool, splits: int = 1, dtype: torch.dtype = torch.bfloat16
) -> Make:
    """Llama's eight key heads of four query heads each."""
    ints, floats = torch.int32, torch.float32
    batch = PagedBatch(
        query_starts=empty(65, dtype=ints),
        context_lengths=empty(64, dtype=ints),
        tables=empty(64, 512, dtype=ints),
        max_query_length=queries,
        max_context_length=8192,
    )
    scale = empty(8, dtype=floats) if kv is FP8 else None
    asked = AttentionTerms(
        scale=head_dim**-0.5,
        window=4096 if terms else None,
        soft_cap=50.0 if terms else None,
        sinks=empty(32, dtype=floats) if terms else None,
        key_scale=scale,
        value_scale=scale,
    )
    some, cache = empty(64 * queries, 32, head_dim, dtype=dtype), empty(1000, 16, 2, 8, head_dim, dtype=kv)
    return lambda chip: paged_attention_launches(some, cache, batch, asked, some, splits=splits, chip=chip)[0]


def rotation(head_dim: int, kv: torch.dtype, *, has_norm: bool) -> Make:
    """q, k and v of Llama's heads."""
    norms = (empty(head_dim), empty(head_dim), 1e-6) if has_norm else None
    scale = empty(8, dtype=torch.float32) if kv is FP8 else None
    return lambda chip: rotate_and_write_launch(
        empty(64, 48 * head_dim),
        (empty(64, 1, head_dim), empty(64, 1, head_dim)),
        empty(1000, 16, 2, 8, head_dim, dtype=kv),
        empty(64, dtype=torch.int64),
        empty(64, 32, head_dim),
        norms=norms,
        scales=(scale, scale),
    )


def sampling(*, shaped: bool) -> Make:
    """64 rows of Llama 3's vocabulary."""
    n, vocab_size = 64, 128256
    wide, longs, floats = (empty(n, dtype=dtype) for dtype in (torch.float64, torch.int64, torch.float32))
    ints = empty(n + 1, dtype=torch.int32)
    columns = SamplingColumns(
        temperature=wide,
        top_k=longs,
        top_p=wide,
        min_p=wide,
        seeds=longs,
        positions=longs,
        repetition=floats,
        frequency=floats,
        presence=floats,
        counts=empty(n, vocab_size, dtype=torch.int32) if shaped else None,
    )
    return lambda chip: sample_tokens_launch(
        empty(n, vocab_size, dtype=torch.float32),
        longs,
        columns,
        longs,
        ints,
        bias=SparseBias(starts=ints, token_ids=ints, values=floats) if shaped else None,
        allowed=AllowedTokens(rows=ints, words=empty(n, vocab_size // 32, dtype=torch.int32)) if shaped else None,
        take=True,
    )


def joining(head_dim: int, splits: int) -> Make:
    """The reduction over splits."""
    parts = empty(64, 32, splits, head_dim, dtype=torch.float32)
    stats, starts = empty(64, 32, 2, splits, dtype=torch.float32), empty(65, dtype=torch.int32)
    return lambda chip: combine_launch(parts, stats, starts, empty(64, 32, head_dim))


def norm(width: int) -> Make:
    """Rows of a hidden size."""
    return lambda chip: add_rms_norm_launch(empty(64, width), empty(64, width), empty(width), 1e-5, empty(64, width))


def copying() -> Make:
    """Blocks of 16 tokens."""
    copier = BlockCopier([torch.empty(2, 16, 2, 8, 128, dtype=torch.bfloat16)])
    return lambda chip: copier.launches([0], [1])[0]


def quantization(width: int) -> Make:
    """Activations of a step before an fp8 product."""
    return lambda chip: quantize_rows_launch(
        empty(64, width), empty(64, width, dtype=torch.uint8), empty(64, 1, dtype=torch.float32)
    )


def table() -> Iterator[tuple[str, Sequence[Make]]]:
    """Name of the row → the launches that it stands for."""
    for head_dim in HEAD_DIMS:
        for step, queries in STEPS.items():
            for kv in (torch.bfloat16, FP8):
                makes = [attention(head_dim, queries, kv, terms=terms) for terms in (False, True)]
                if step == "decode":
                    makes.append(attention(head_dim, queries, kv, terms=False, splits=8))
                yield f"attention, head {head_dim}, {step}, {'fp8' if kv is FP8 else '16-bit'} cache", makes
    for queries in STEPS.values():
        make = attention(128, queries, torch.float16, terms=True, dtype=torch.float16)
        yield f"attention, head 128, float16, {queries} queries", [make]
    for head_dim in HEAD_DIMS:
        yield f"joining splits, head {head_dim}", [joining(head_dim, splits) for splits in (2, 32)]
    for head_dim in HEAD_DIMS:
        makes = [rotation(head_dim, kv, has_norm=norm) for kv in (torch.bfloat16, FP8) for norm in (False, True)]
        yield f"norm, rotation and write, head {head_dim}", makes
    for width in (576, 4096, 16384):
        yield f"RMSNorm with residual, {width} wide", [norm(width)]
    yield "SiLU times up", [lambda chip: silu_mul_launch(empty(64, 28672), empty(64, 14336))]
    yield "rows to fp8", [quantization(width) for width in (576, 4096, 14336)]
    yield "copies of blocks", [copying()]
    yield "sampling", [sampling(shaped=shaped) for shaped in (False, True)]


def faults(name: str, compiled: Compiled, chip: int) -> list[str]:
    """What is wrong with it on that chip."""
    found = []
    if compiled.spilled_bytes or compiled.stack_bytes:
        found.append(f"spills {compiled.spilled_bytes} bytes, with a stack of {compiled.stack_bytes}")
    if compiled.shared_bytes > SHARED_BYTES_MAX[chip]:
        found.append(f"{compiled.shared_bytes} bytes of shared memory; the chip has {SHARED_BYTES_MAX[chip]}")
    if name.startswith("attention") and not compiled.tensor_core:
        found.append("multiplies matrices without tensor cores")
    if not compiled.wide_loads and name != "sampling":
        found.append("loads nothing in 16 bytes at once")
    return [f"{name}, sm_{chip}: {fault}" for fault in found]


def main() -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chip", type=int, action="append", choices=CHIPS, help="may be given several times")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    arguments = parser.parse_args()
    chips, wrong = tuple(arguments.chip or CHIPS), []
    print("| kernel |" + "".join(f" sm_{chip} |" for chip in chips))
    print("|---|" + "---|" * len(chips))
    for name, makes in table():
        if arguments.only not in name:
            continue
        cells = []
        for chip in chips:
            all_of_it = [compile_ahead(make(chip), chip) for make in makes]
            wrong += [fault for compiled in all_of_it for fault in faults(name, compiled, chip)]
            registers, shared = (max(getattr(c, field) for c in all_of_it) for field in ("registers", "shared_bytes"))
            cells.append(f" {registers} / {shared / 1024:.0f} {all_of_it[0].tensor_core.split('.')[0]}".rstrip() + " |")
        print(f"| {name} |" + "".join(cells), flush=True)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
