"""The 8-bit floats of an fp8 KV cache (e4m3: one sign, four exponent, three mantissa bits), by arithmetic on bits.

Chips before compute capability 8.9 have no instructions for them, and Triton refuses the type there: the cache is then
read as bytes. Writing goes through bytes on every chip: it is little, and one way is easier to trust than two.
"""

import triton
import triton.language as tl

LARGEST = 448.0
"""The largest number; there is no infinity."""


@triton.jit
def encode_e4m3(x):
    """The bytes of float32 numbers: to the nearest, ties to even, saturating; NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), 448.0)
    size_bits = size.to(tl.int32, bitcast=True)
    # 20 of the 23 mantissa bits go; the exponent's bias falls from 127 to 7.
    normal = (size_bits + 0x7FFFF + ((size_bits >> 20) & 1) >> 20) - (120 << 3)
    # Below 2**-6 the steps are 2**-9, as they are between floats from 2**14 on: adding that rounds.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def decode_e4m3(code):
    """The numbers of bytes, as float16 and exactly; the code of NaN becomes 480 and must not be stored."""
    wide = code.to(tl.int16)
    # As float16 bits the number comes out too small by 2**8, the difference of the biases, subnormals included.
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
