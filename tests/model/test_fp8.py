"""Weights and activations in fp8: the arithmetic, and what a model in it says; and eight and four bits by torchao."""

import sys
import types
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.running import Driver, our_model, reference_model
from triolet.engine.core.errors import ConfigurationError
from triolet.model.formats import GpuFormats, quantizer, resolve_gpu_formats
from triolet.model.layers.fp8 import E4M3, LARGEST, Fp8Linear, quantize_rows
from triolet.model.layers.linear import Linear
from triolet.model.layers.torchao_linear import quantized_linear


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_a_product_is_that_of_the_rounded_numbers(seed: int, tokens: int, a: int, b: int, has_bias: bool) -> None:
    """In float64, over what e4m3 keeps of weights and activations, times both scales; rounded once to bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((16 * a, 16 * b), generator=generator, dtype=torch.bfloat16)
    x = torch.randn((tokens, 16 * b), generator=generator, dtype=torch.bfloat16) * 3
    bias = torch.randn(16 * a, generator=generator, dtype=torch.bfloat16) if has_bias else None
    linear = Fp8Linear.of(weight)
    found = Fp8Linear(weight=linear.weight, scale=linear.scale, bias=bias)(x)
    rows, scale = quantize_rows(x)
    exact = (rows.double() @ linear.weight.double().t()) * scale.double() * linear.scale.double()
    if bias is not None:
        exact += bias.double()
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=1e-3)
    plain = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    error = (found.double() - plain).norm() / plain.norm()
    assert error < 0.07  # three bits of mantissa on both sides


def test_each_row_and_each_output_has_a_scale_of_its_own() -> None:
    """A large number takes nothing from the rows beside it; a row of zeros stays zero, and the largest fits exactly."""
    x = torch.tensor([[1e-3] * 16, [1e4] * 16, [0.0] * 16])
    rows, scale = quantize_rows(x)
    assert rows.dtype is E4M3
    torch.testing.assert_close(rows.float() * scale, x, rtol=1e-6, atol=0)
    assert rows.float().abs().max() == LARGEST
    weight = torch.ones(16, 16)
    weight[3] *= 1e5
    linear = Fp8Linear.of(weight)
    torch.testing.assert_close(linear(torch.ones(1, 16, dtype=torch.bfloat16))[0, 0].item(), 16.0)


def test_a_matrix_that_no_gpu_multiplies_is_refused() -> None:
    """The sizes, and the rule."""
    with pytest.raises(ConfigurationError, match=r"a matrix of \[24, 32\], and GPUs multiply fp8 in multiples of 16"):
        Fp8Linear.of(torch.ones(24, 32))


def test_a_model_in_fp8_stays_near_its_own() -> None:
    """Every matrix of every layer is quantized, with its bias beside it; the logits point the same way."""
    reference = reference_model("qwen2")
    plain = our_model(reference, dtype=torch.bfloat16, pack=False)
    model = our_model(reference, dtype=torch.bfloat16, quantize=quantizer("fp8"))
    for layer in model.layers:
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            assert isinstance(linear, Fp8Linear)
        assert layer.qkv.bias is not None
    tokens = torch.arange(20)
    with torch.inference_mode():
        both = [m.forward(tokens, tokens, lambda layer, q, k, v: q.contiguous()) for m in (plain, model)]
    assert torch.nn.functional.cosine_similarity(*both).min() > 0.97


def test_a_model_in_fp8_runs() -> None:
    """Through the runner, chunked and decoded."""
    driver = Driver(our_model(reference_model("llama"), dtype=torch.bfloat16, quantize=Fp8Linear.of))
    assert len(driver.generate(driver.join([1, 2, 3, 4, 5]), 8, limit=2)) == 8


def formats(**fields: Any) -> GpuFormats:
    settings = {
        "quantization": "none",
        "kv_cache_dtype": "auto",
        "dtype": torch.bfloat16,
        "device": torch.device("cuda"),
        "backend": "triton",
        "capability": lambda device: (9, 0),
        **fields,
    }
    return resolve_gpu_formats(**settings)


def test_formats_of_a_gpu() -> None:
    """The model's dtype, unless fp8 is asked for, for either."""
    assert formats() == GpuFormats(weights="none", kv=torch.bfloat16)
    assert formats(quantization="fp8") == GpuFormats(weights="fp8", kv=torch.bfloat16)
    assert formats(kv_cache_dtype="fp8").kv is E4M3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"quantization": "fp8", "capability": lambda device: (8, 6)},
            "--quantization fp8 needs an NVIDIA GPU of compute capability 9.0 or later (Hopper); this one's is 8.6.",
        ),
        ({"quantization": "fp8", "dtype": torch.float16}, "--quantization fp8 computes in bfloat16; set --dtype"),
        ({"quantization": "int8", "dtype": torch.float16}, "--quantization int8 computes in bfloat16; set --dtype"),
        (
            {"kv_cache_dtype": "fp8", "backend": "flash_attn"},
            "--kv-cache-dtype fp8 needs --attention-backend triton, on an NVIDIA GPU; here flash_attn attends, on",
        ),
        (
            {"kv_cache_dtype": "int8"},
            "--kv-cache-dtype int8 needs the native CPU kernels, but the model runs on cuda; a GPU has fp8.",
        ),
    ],
)
def test_what_a_gpu_cannot_do_is_said(fields: dict[str, Any], message: str) -> None:
    """The flag, what it needs, and what is here."""
    with pytest.raises(ConfigurationError) as caught:
        formats(**fields)
    assert caught.value.message.startswith(message)


def test_without_torchao_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command."""
    monkeypatch.setattr("triolet.model.layers.torchao_linear.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as caught:
        formats(quantization="int4")
    assert caught.value.message == (
        "--quantization int4 on a GPU needs torchao, which is not installed: pip install torchao"
    )


@pytest.mark.parametrize(
    ("bits", "shape", "expected"),
    [
        ("int8", (32, 64), ("Int8WeightOnlyConfig", {})),
        ("int4", (32, 256), ("Int4WeightOnlyConfig", {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"})),
        ("int4", (32, 96), ("Int4WeightOnlyConfig", {"group_size": 32, "int4_packing_format": "tile_packed_to_4d"})),
    ],
)
def test_torchao_is_asked_for_the_right_format(
    monkeypatch: pytest.MonkeyPatch, bits: str, shape: tuple[int, int], expected: tuple[str, dict[str, Any]]
) -> None:
    """Its public names, with the weight as the child of a module; what it puts in the weight's place multiplies."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def named(name: str) -> Any:
        return lambda **fields: asked.append((name, fields))

    def quantize_(module: torch.nn.Module, config: object) -> None:
        (linear,) = module.children()
        assert isinstance(linear, torch.nn.Linear)
        linear.weight = torch.nn.Parameter(linear.weight * 2, requires_grad=False)

    package, quantization = types.ModuleType("torchao"), types.ModuleType("torchao.quantization")
    quantization.__dict__.update(
        Int8WeightOnlyConfig=named("Int8WeightOnlyConfig"),
        Int4WeightOnlyConfig=named("Int4WeightOnlyConfig"),
        quantize_=quantize_,
    )
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.quantization", quantization)
    weight = torch.ones(shape, dtype=torch.bfloat16)
    linear = quantized_linear(weight, bits)
    assert isinstance(linear, Linear)
    assert torch.equal(linear.weight, weight * 2)
    assert asked == [expected]
