"""The kernels that write to the cache, in the interpreter: rotation with norm and write, copies, fp8 codes."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.model.attention.triton.copy_blocks import BlockCopier, copy_blocks_reference
from triolet.model.attention.triton.e4m3 import decode_e4m3, encode_e4m3
from triolet.model.attention.triton.rotate_and_write import (
    rotate_and_write,
    rotate_and_write_launch,
    rotate_and_write_reference,
)

from ..interpreter import bits, poison, run_in_both_orders

SEEDS = st.integers(0, 2**32 - 1)


@triton.jit
def _encode(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, encode_e4m3(tl.load(x + i)))


@triton.jit
def _decode(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    tl.store(out + i, decode_e4m3(tl.load(x + i)))


def test_all_codes_are_read_exactly() -> None:
    """Each of the 254 numbers of e4m3."""
    codes = torch.arange(256).to(torch.uint8)
    out = torch.empty(256, dtype=torch.float16)
    _decode[(1,)](codes, out, BLOCK=256)
    wanted = codes.view(torch.float8_e4m3fn).float()
    number = ~wanted.isnan()
    assert torch.equal(out.float()[number], wanted[number])


def test_numbers_are_written_to_the_nearest_code() -> None:
    """All codes, all midpoints between two and their neighbours in float32, large numbers, NaN: as torch rounds."""
    numbers = torch.arange(127).to(torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = [torch.nextafter(middles, torch.full_like(middles, end)) for end in (0.0, 1e9)]
    random = torch.randn(3000) * torch.exp(4 * torch.randn(3000))
    x = torch.cat((numbers, middles, *near, random, torch.tensor([448.0, 460.0, 1e30, float("inf"), float("nan")])))
    x = torch.cat((x, -x, torch.zeros(-2 * len(x) % 1024)))
    out = torch.empty(len(x), dtype=torch.uint8)
    _encode[(len(x) // 1024,)](x, out, BLOCK=1024)
    assert torch.equal(out & 0x7F, x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8) & 0x7F)
    assert torch.equal(out[~x.isnan()] >> 7, torch.signbit(x[~x.isnan()]).to(torch.uint8))


@settings(deadline=None, max_examples=30)
@given(
    seed=SEEDS,
    num_tokens=st.integers(1, 4),
    heads=st.sampled_from([(1, 1), (2, 2), (3, 1), (6, 2), (8, 1)]),
    dims=st.sampled_from([(16, 16), (24, 8), (64, 64), (80, 32), (80, 80), (96, 96), (128, 64), (256, 256)]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    fp8=st.booleans(),
    has_norm=st.booleans(),
)
def test_norm_rotation_and_write_in_one(
    seed: int,
    num_tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    fp8: bool,
    has_norm: bool,
) -> None:
    """Queries and cache equal float64 up to one rounding; slots that no token is written to are left alone."""
    generator = torch.Generator().manual_seed(seed)
    (num_heads, num_kv_heads), (head_dim, rotary_dim) = heads, dims

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    qkv = randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    tables = (randn(num_tokens, 1, rotary_dim).to(dtype), randn(num_tokens, 1, rotary_dim).to(dtype))
    norms = (randn(head_dim).to(dtype), randn(head_dim).to(dtype), 1e-6) if has_norm else None
    scales = (0.01 + randn(num_kv_heads).abs(), 0.01 + randn(num_kv_heads).abs()) if fp8 else (None, None)
    slots = torch.randperm(3 * 16, generator=generator)[:num_tokens]
    slots[torch.rand(num_tokens, generator=generator) < 0.2] = -1
    kv = torch.empty(3, 16, 2, num_kv_heads, head_dim, dtype=torch.float8_e4m3fn if fp8 else dtype)
    kv, out = poison(kv), poison(torch.empty(num_tokens, num_heads, head_dim, dtype=dtype))
    wanted_kv, wanted = kv.to(torch.float64), out.double()
    launch = rotate_and_write_launch(qkv, tables, kv, slots, out, norms=norms, scales=scales)
    run_in_both_orders(lambda: [launch], [out, kv])
    wide = None if norms is None else (norms[0].double(), norms[1].double(), 1e-6)
    rotate_and_write_reference(qkv.double(), tables, wanted_kv, slots, wanted, norms=wide, scales=(None, None))
    for head in range(num_kv_heads) if fp8 else ():
        for j, scale in enumerate(scales):
            assert scale is not None
            wanted_kv[:, :, j, head] = (wanted_kv[:, :, j, head] / scale[head]).clamp(-448, 448)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wanted, rtol=eps, atol=32 * eps if dtype is torch.float32 else eps)
    # An fp8 code is within half of its 2**-3 of the number, and within 2**-10 of the smallest ones.
    rtol, atol = (2**-4 + 1e-5, 2**-10 + 1e-5) if fp8 else (eps, 32 * eps if dtype is torch.float32 else eps)
    torch.testing.assert_close(kv.double(), wanted_kv, rtol=rtol, atol=atol, equal_nan=True)


def test_the_launcher_takes_an_empty_batch() -> None:
    """No tokens, no kernel."""
    kv = torch.zeros(1, 16, 2, 1, 16)
    tables = (torch.empty(0, 1, 16), torch.empty(0, 1, 16))
    out = rotate_and_write(torch.empty(0, 64), tables, kv, torch.empty(0, dtype=torch.int64), num_heads=2)
    assert out.shape == (0, 2, 16)
    assert not kv.any()


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, data=st.data())
def test_copies_read_every_source_before_a_target_is_written(seed: int, data: st.DataObject) -> None:
    """Any pairs with different targets: chains, cycles and a source for several, in both orders of programs."""
    num_blocks = data.draw(st.integers(1, 6))
    targets = data.draw(st.lists(st.integers(0, num_blocks - 1), unique=True, max_size=num_blocks))
    sources = [data.draw(st.integers(0, num_blocks - 1)) for _ in targets]
    shape = data.draw(st.sampled_from([(2, 2, 1, 8), (16, 2, 2, 40)]))
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(num_blocks, *shape, generator=generator).to(torch.bfloat16) for _ in range(2)]
    wanted = [tensor.clone() for tensor in tensors]
    if targets:
        copier = BlockCopier(tensors)
        run_in_both_orders(lambda: copier.launches(sources, targets), tensors)
    copy_blocks_reference(wanted, sources, targets)
    for tensor, held in zip(tensors, wanted, strict=True):
        assert torch.equal(bits(tensor), bits(held))


def test_the_copier_refuses_what_is_no_copy() -> None:
    """A block that is not there, a target written twice; nothing to copy is nothing."""
    tensors = [torch.randn(3, 4, 2, 1, 8)]
    before = tensors[0].clone()
    copier = BlockCopier(tensors)
    copier.copy([], [])
    with pytest.raises(AssertionError, match="block 3 is to be copied, but there are 3 blocks"):
        copier.copy([0], [3])
    with pytest.raises(AssertionError, match="2 blocks cannot be copied to 2, each written once"):
        copier.copy([0, 1], [2, 2])
    assert torch.equal(tensors[0], before)
    copier.copy([0], [2])
    assert torch.equal(tensors[0][2], before[0])


def test_a_racing_kernel_is_caught_by_the_order_of_programs() -> None:
    """The harness is sharp: a copy without the scratch, where one block is source and target, fails it."""
    tensors = [torch.randn(3, 4, 2, 1, 8)]
    copier = BlockCopier(tensors)
    read, write = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
    with pytest.raises(AssertionError, match="depends on the order of programs"):
        run_in_both_orders(
            lambda: [copier._launch(copier._addresses, copier._addresses, read, write)],
            tensors,
        )
