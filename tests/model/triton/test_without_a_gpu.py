"""What the kernels' launchers do on a machine without a GPU and without the interpreter: the same, in torch."""

import numpy as np
import pytest
import torch

from triolet.engine.core.errors import ConfigurationError
from triolet.model import launch
from triolet.model.attention import AttentionShape, choose_backend
from triolet.model.attention.triton.backend import TritonAttention
from triolet.model.attention.triton.combine import combine_reference
from triolet.model.attention.triton.copy_blocks import BlockCopier
from triolet.model.attention.triton.rotate_and_write import rotate_and_write
from triolet.model.attention.triton.tiles import choose_splits
from triolet.model.kv import KVTensors
from triolet.model.layers.rms_norm import rms_norm
from triolet.model.layers.rotary import Rotary
from triolet.model.layers.triton.rms_norm import add_rms_norm
from triolet.model.layers.triton.sample import SamplingColumns, sample_tokens
from triolet.model.layers.triton.silu_mul import silu_mul
from triolet.model.sampling import SamplingRows, sample
from triolet.model.spec import ModelSpec

from ..test_attention import WINDOWS, Case, Scene

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=1,
    hidden_size=64,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=8,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
    tied_embeddings=True,
)


def test_the_backend_needs_a_gpu_and_says_so() -> None:
    """By name on a CPU it is refused with its reason; on CUDA it is the first choice."""
    with pytest.raises(ConfigurationError, match=r"triton cannot be used here: its kernels run on an NVIDIA GPU, not "):
        choose_backend("triton", "cpu")
    assert choose_backend(None, "cuda") is TritonAttention


def test_without_triton_another_backend_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where triton isn't installed the name is refused with that reason, and CUDA gets torch."""
    monkeypatch.setattr("triolet.model.attention.triton.backend.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="cannot be used here: triton is not installed"):
        choose_backend("triton", "cuda")
    assert choose_backend(None, "cuda").name == "torch"


def test_heads_wider_than_the_tiles_are_refused() -> None:
    """The message names the flag that helps."""
    shape = AttentionShape(num_heads=1, num_kv_heads=1, head_dim=320, windows=(None,))
    kv = KVTensors(SPEC, num_blocks=1, block_size=16, dtype=torch.float32)
    with pytest.raises(
        ConfigurationError, match="up to 256 dimensions; this model's have 320: choose --attention-back"
    ):
        TritonAttention(shape, kv)


def test_the_backend_computes_its_references() -> None:
    """The same steps, equal to the naive reference."""
    case = Case(sequences=((0, 20), (16, 1), (33, 4)), block_size=16, num_heads=4, num_kv_heads=2, head_dim=20, seed=7)
    scene = Scene(case)
    backend = TritonAttention(scene.shape, scene.kv)
    metadata = backend.prepare(scene.layout)
    new = torch.cat([context[b:] for (b, _), context in zip(case.sequences, scene.contexts, strict=True)])
    for layer in range(len(WINDOWS)):
        backend.write(layer, new[:, 0], new[:, 1], metadata)
        found = backend.attend(layer, scene.queries, metadata)
        torch.testing.assert_close(found.double(), scene.reference(layer), rtol=1e-4, atol=1e-5)


def test_one_call_does_what_norm_rotation_and_write_do_in_the_model() -> None:
    """`rotate_and_write` against the model's own steps, with the tables that `Rotary` makes."""
    qkv, weights = torch.randn(5, 8 * 16), torch.randn(2, 16)
    rotary = Rotary(SPEC)
    tables = rotary.tables(torch.tensor([0, 1, 7, 30, 200]), torch.float32)
    kv, slots = torch.zeros(2, 16, 2, 2, 16), torch.tensor([3, 31, 16, -1, 0])
    norms = {"q_norm": weights[0], "k_norm": weights[1], "eps": 1e-5}
    queries = rotate_and_write(qkv, tables, kv, slots, num_heads=4, **norms)
    heads = qkv.view(5, 8, 16)
    wanted = rotary.rotate(rms_norm(heads[:, :4], weights[0], 1e-5), tables)
    keys = rotary.rotate(rms_norm(heads[:, 4:6], weights[1], 1e-5), tables)
    torch.testing.assert_close(queries, wanted)
    written = slots >= 0
    torch.testing.assert_close(kv.view(32, 2, 2, 16)[slots[written], 0], keys[written])
    assert torch.equal(kv.view(32, 2, 2, 16)[slots[written], 1], heads[:, 6:][written])
    assert kv.any(-1).any(-1).sum() == 2 * written.sum()


def test_the_layers_between_the_matrices() -> None:
    """RMSNorm with its residual and SiLU times up, as the model computes them."""
    x, residual, weight = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    wanted = rms_norm(x + residual, weight, 1e-5)
    torch.testing.assert_close(add_rms_norm(x, residual, weight, 1e-5), wanted)
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(silu_mul(x), torch.nn.functional.silu(gate) * up)


def test_parts_of_a_split_are_joined_by_their_weights() -> None:
    """The softmax over two halves of the scores is the softmax over all of them; an empty part counts for nothing."""
    scores, values = torch.randn(1, 1, 2, 8).double(), torch.randn(1, 1, 2, 8, 4).double()
    most = scores.amax(-1)
    weights = (scores - most[..., None]).exp2()
    parts = torch.cat(((weights[..., None] * values).sum(-2), torch.full((1, 1, 1, 4), torch.nan)), 2)
    stats = torch.stack((most, weights.sum(-1)), 2)
    stats = torch.cat((stats, torch.tensor([-torch.inf, 0.0]).view(1, 1, 2, 1)), -1)
    probabilities = (scores * np.log(2)).flatten(2).softmax(-1)
    torch.testing.assert_close(combine_reference(parts, stats), probabilities @ values.flatten(2, 3)[0])


def test_blocks_are_copied() -> None:
    """In every tensor, sources first."""
    tensors = [torch.randn(3, 4, 2, 1, 8) for _ in range(2)]
    before = [tensor.clone() for tensor in tensors]
    BlockCopier(tensors).copy([0, 1], [1, 2])
    for tensor, held in zip(tensors, before, strict=True):
        assert torch.equal(tensor, held[[0, 0, 1]])


def test_tokens_are_drawn_by_the_samplers_law() -> None:
    """The launcher's tokens are those of `model/sampling.py`."""
    rows = SamplingRows(
        temperature=np.array([0.0, 1.0, 0.8]),
        top_k=np.array([0, 5, 0]),
        top_p=np.array([1.0, 0.9, 1.0]),
        min_p=np.array([0.0, 0.0, 0.1]),
        seeds=np.array([1, 2**64 - 1, 3], np.uint64),
        positions=np.array([4, 5, 6]),
    )
    logits = torch.randn(3, 50)
    wanted, _ = sample(logits.clone(), rows)
    tokens, status = sample_tokens(logits, torch.arange(3), SamplingColumns.of(rows, "cpu"))
    assert tokens.tolist() == wanted.tolist()
    assert status.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("num_tiles", "context", "splits"),
    [(256, 4096, 1), (64, 4096, 1), (1, 100, 1), (1, 300, 1), (1, 1024, 4), (1, 131072, 32), (8, 8192, 8)],
)
def test_keys_are_split_where_tiles_are_few_and_contexts_long(num_tiles: int, context: int, splits: int) -> None:
    """A power of two, of parts that are worth their while, and no more than the chip has room for."""
    assert choose_splits(num_tiles=num_tiles, num_kv_heads=8, max_context_length=context, num_processors=132) == splits


def test_a_chip_that_is_not_there_counts_as_an_h100() -> None:
    """What choices are made by where there is no GPU."""
    assert launch.capability(torch.device("cpu")) == 90
    assert launch.num_processors(torch.device("meta")) == 132
