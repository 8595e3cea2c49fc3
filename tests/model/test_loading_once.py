"""Weights are held once: what loading allocates is counted, allocation by allocation."""

import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.model.running import SHAPE
from tests.model.tiny import make_model, write_folder
from triolet.model.layers.fp8 import Fp8Linear
from triolet.model.llama import LlamaModel, build_model
from triolet.model.safetensors_file import folder_weights
from triolet.model.source import ModelSource
from triolet.model.weights import read_spec

ALLOCATE = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.clone.default,
)


class Allocations(TorchDispatchMode):
    """Bytes of what is allocated for weights, or copied."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in ALLOCATE and not result.is_meta:
            self.total += result.numel() * result.element_size()
        return result


def load(folder: Path, dtype: torch.dtype, **options: Any) -> tuple[LlamaModel, int]:
    spec = read_spec(ModelSource(kind="folder", path=folder, name="tiny"))
    with Allocations() as allocations:
        model = build_model(spec, folder_weights(folder, spec), dtype=dtype, pack=False, **options)
    return model, allocations.total


def test_a_weight_goes_from_the_file_to_its_place(tmp_path: Path) -> None:
    """The file is mapped; what is allocated are the places, also where the type changes on the way."""
    reference = make_model("llama")
    write_folder(tmp_path, reference)
    parameters = sum(parameter.numel() for parameter in reference.parameters())
    for dtype in (torch.float32, torch.bfloat16):
        model, allocated = load(tmp_path, dtype)
        assert model.dtype is dtype
        small = 4 * 4 * SHAPE["hidden_size"]  # the frequencies of the rotary positions, and what they are made of
        assert parameters * dtype.itemsize <= allocated <= parameters * dtype.itemsize + small


def test_matrices_that_are_quantized_take_memory_one_at_a_time(tmp_path: Path) -> None:
    """When a matrix has become fp8 its bfloat16 is let go before the next one needs its own."""
    write_folder(tmp_path, make_model("llama", num_hidden_layers=4))
    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def quantize(weight: torch.Tensor) -> Fp8Linear:
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(weight))
        return Fp8Linear.of(weight)

    load(tmp_path, torch.bfloat16, quantize=quantize)
    assert alive == [0] * 16
