"""The `triton` backend behind the interface that all attention backends share, in the interpreter."""

import numpy as np
import pytest
import torch

from triolet.model.attention import choose_backend
from triolet.model.attention.triton.backend import TritonAttention
from triolet.model.kv import KVTensors

from ...test_attention import WINDOWS, Case, Scene
from ..interpreter import fresh_seed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_backend_equals_the_naive_reference_in_every_layer(dtype: torch.dtype) -> None:
    """Write, then attend: chunks and decodes, with layers of different windows, NaN in every slot that is nobody's."""
    case = Case(
        sequences=((0, 20), (16, 1), (33, 4), (0, 1)),
        block_size=16,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        seed=fresh_seed(),
        dtype=dtype,
    )
    scene = Scene(case)
    backend = TritonAttention(scene.shape, scene.kv)
    metadata = backend.prepare(scene.layout)
    new = torch.cat([context[b:] for (b, _), context in zip(case.sequences, scene.contexts, strict=True)])
    eps = max(1e-5, 3 * torch.finfo(dtype).eps)
    for layer in range(len(WINDOWS)):
        backend.write(layer, new[:, 0], new[:, 1], metadata)
        found = backend.attend(layer, scene.queries, metadata)
        torch.testing.assert_close(found.double(), scene.reference(layer), rtol=eps, atol=eps, msg=str(case))


def test_an_fp8_cache_holds_scaled_keys_and_values() -> None:
    """What is written and read with scales is what was given, up to the 3 mantissa bits; large numbers saturate."""
    case = Case(sequences=((0, 9),), block_size=16, num_heads=2, num_kv_heads=2, head_dim=16, seed=fresh_seed())
    scene = Scene(case)
    kv = _fp8_like(scene.kv)
    backend = TritonAttention(scene.shape, kv)
    backend.set_scales({0: (torch.tensor([0.01, 2.0]), torch.tensor([0.02, 1.0]))})
    metadata = backend.prepare(scene.layout)
    new = scene.contexts[0]
    backend.write(0, new[:, 0], new[:, 1], metadata)
    held = kv.layers[0].float()[scene.tables[0, 0], :9]
    scales = torch.tensor([[0.01, 2.0], [0.02, 1.0]])[None, :, :, None]
    torch.testing.assert_close(held * scales, new.clamp(-448 * scales, 448 * scales), rtol=2**-4, atol=2**-10 * 2)
    found = backend.attend(0, scene.queries, metadata)
    torch.testing.assert_close(found.double(), scene.reference(0), rtol=0.2, atol=0.3)


def _fp8_like(kv: KVTensors) -> KVTensors:
    other = object.__new__(KVTensors)
    other.__dict__.update(kv.__dict__)
    other.tensors = tuple(torch.zeros(t.shape, dtype=torch.float8_e4m3fn) for t in kv.tensors)
    other.layers = other.tensors
    other._rows = tuple(t.view(kv.num_blocks * kv.block_size, -1) for t in other.layers)
    return other


def test_in_the_interpreter_the_backend_runs_anywhere() -> None:
    """By name on a CPU; a step's lengths are bounds of the tiles."""
    assert choose_backend("triton", "cpu") is TritonAttention
    case = Case(sequences=((3, 1), (5, 2)), block_size=16, num_heads=1, num_kv_heads=1, head_dim=16, seed=1)
    scene = Scene(case)
    batch = TritonAttention(scene.shape, scene.kv).prepare(scene.layout).batches[0]
    assert batch.query_starts.tolist() == [0, 1, 3]
    assert (batch.max_query_length, batch.max_context_length) == (2, 7)
    assert batch.tables.dtype is torch.int32
    assert np.array_equal(batch.context_lengths.numpy(), [4, 7])
