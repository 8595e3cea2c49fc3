"""What a model takes on a machine: known models and known numbers, and the refusal of a machine that is too small."""

import attrs
import pytest

from triolet.engine.core.errors import ConfigurationError
from triolet.engine.estimate import GIB, GPUS, Hardware, estimate, find_gpu, num_step_weights, num_weights
from triolet.model.spec import ModelSpec

MIB = 1 << 20
LLAMA_2_7B = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=11008,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    vocab_size=32000,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    tied_embeddings=False,
    torch_dtype="float16",
)
A_DEVICE = Hardware(name="80 GB", memory_bytes=80 * GIB, bytes_per_s=2e12, flops=300e12)


def test_the_worked_example() -> None:
    """Llama 2 7B in 16 bits on 80 GB at 0.9 with 1.5 GB of activations: 8 MiB a block, 7,400 blocks, 118,000 tokens."""
    found = estimate(
        LLAMA_2_7B, A_DEVICE, dtype="float16", kv_dtype="float16", utilization=0.9, activation_bytes=3 * GIB // 2
    )
    assert found.num_weights == 6_738_415_616
    assert found.bytes_per_block == 8 * MIB
    assert found.kv_bytes_per_token == MIB // 2
    assert found.num_blocks == 7417
    assert found.num_tokens == 118_672
    assert (found.most_sequences(4096), found.most_sequences(512)) == (28, 231)
    assert found.largest_model_len(4096) == 4096
    assert found.largest_model_len(1_000_000) == 118_672


def test_the_roofline() -> None:
    """A small batch waits for the weights, a long context for its KV, a large prompt for the arithmetic."""
    found = estimate(LLAMA_2_7B, A_DEVICE, dtype="float16", kv_dtype="float16")
    weights = 2 * num_step_weights(LLAMA_2_7B)
    assert num_step_weights(LLAMA_2_7B) == num_weights(LLAMA_2_7B) - 32000 * 4096
    assert found.step_seconds(num_tokens=1, num_context=0) == pytest.approx(weights / 2e12)
    assert found.step_seconds(num_tokens=1, num_context=1000) == pytest.approx((weights + 1000 * MIB / 2) / 2e12)
    compute = found.prefill_seconds(4096)
    assert compute == pytest.approx((4096 * weights + 4 * 32 * 4096 * 4096**2 / 2) / 300e12)
    unknown = estimate(LLAMA_2_7B, Hardware(name="?", memory_bytes=80 * GIB), dtype="float16", kv_dtype="float16")
    assert (unknown.step_seconds(num_tokens=1, num_context=0), unknown.prefill_seconds(9)) == (None, None)


def test_fewer_bits_take_fewer_bytes() -> None:
    """int8 halves the weights, int4 takes a byte for two and a scale for 32; an int8 cache holds twice the tokens."""
    wide = estimate(LLAMA_2_7B, A_DEVICE, dtype="float16", kv_dtype="float16")
    int8 = estimate(LLAMA_2_7B, A_DEVICE, dtype="int8", kv_dtype="int8")
    int4 = estimate(LLAMA_2_7B, A_DEVICE, dtype="int4", kv_dtype="float16")
    assert wide.weight_bytes == 2 * int8.weight_bytes
    assert int4.weight_bytes == int(num_weights(LLAMA_2_7B) * 9 / 16)
    assert wide.bytes_per_block == 2 * int8.bytes_per_block


def test_sliding_windows_have_groups_of_their_own() -> None:
    """Half of the layers see 1,024 tokens: a block serves one half, and a token of a sequence is in two."""
    windowed = attrs.evolve(LLAMA_2_7B, sliding_window=1024, sliding_layers=tuple(range(0, 32, 2)))
    plain = estimate(LLAMA_2_7B, A_DEVICE, dtype="float16", kv_dtype="float16")
    found = estimate(windowed, A_DEVICE, dtype="float16", kv_dtype="float16")
    assert found.bytes_per_block == plain.bytes_per_block // 2
    assert len(found.groups) == 2
    assert abs(found.num_tokens - plain.num_tokens) <= found.block_size


def test_a_machine_that_is_too_small_is_refused() -> None:
    """With what it has and what is needed; a GPU that is not known, with those that are."""
    small = Hardware(name="small", memory_bytes=8 * GIB)
    with pytest.raises(ConfigurationError, match=r"^8 GiB x 0\.92 hold the weights \(12\.55 GiB\) and activations"):
        estimate(LLAMA_2_7B, small, dtype="float16", kv_dtype="float16")
    assert find_gpu("a100-80gb") is GPUS["A100-80GB"]
    with pytest.raises(ConfigurationError, match=r"^--gpu 'abacus' is not known; it is one of B200, H200, H100"):
        find_gpu("abacus")
