"""The size of the KV cache: as many blocks as fit, or a refusal that names the flags."""

import pytest

from triolet.engine.core.errors import ConfigurationError
from triolet.engine.sizing import KVSize, resolve_max_model_len, size_kv_cache
from triolet.kvcache.group import KVGroup


def size(**changes: object) -> KVSize:
    """Layers of 1 KiB a token: 16 KiB a block."""
    arguments: dict[str, object] = {
        "memory_bytes": 1 << 20,
        "num_layers": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "element_bytes": 2,
        "block_size": 16,
        "max_model_len": 512,
    }
    return size_kv_cache(**{**arguments, **changes})  # type: ignore[arg-type]


def test_the_memory_is_filled_with_blocks() -> None:
    """Whole blocks that fit, and the line for the log with all that an operator asks."""
    kv = size()
    assert (kv.num_blocks, kv.bytes_per_block, kv.num_tokens, kv.most_sequences) == (64, 16384, 1024, 2)
    assert str(kv) == (
        "KV cache: 64 blocks of 16 tokens and 16384 bytes, 1024 tokens in 1 MiB; holds at most 2 sequences of 512 "
        "tokens at once"
    )
    assert str(size(max_model_len=1024)).endswith("; holds at most 1 sequence of 1024 tokens at once")


def test_too_small_for_one_sequence_names_the_flags() -> None:
    """The refusal says what is there, what is needed, and which flags to change to what."""
    with pytest.raises(ConfigurationError) as caught:
        size(max_model_len=1025)
    assert caught.value.message == (
        "The KV cache gets 1 MiB, 64 blocks of 16 tokens: too small for one sequence of 1025 tokens, which needs 65 "
        "blocks. Raise --kv-cache-memory to at least 1064960 bytes, or lower --max-model-len to at most 1024."
    )


def test_the_length_that_a_refusal_names_is_one_that_fits() -> None:
    """Also where a sequence holds blocks in several groups: they share the pool."""
    groups = (KVGroup(), KVGroup(sliding_window=64))
    with pytest.raises(ConfigurationError) as caught:
        size(max_model_len=1024, groups=groups)
    longest = int(caught.value.message.rstrip(".").rsplit(" ", 1)[1])
    assert size(max_model_len=longest, groups=groups).most_sequences == 1
    with pytest.raises(ConfigurationError):
        size(max_model_len=longest + 1, groups=groups)


def test_no_block_at_all_is_refused_too() -> None:
    """Memory for less than a block is too small as well."""
    with pytest.raises(ConfigurationError, match="0 blocks of 16 tokens: too small"):
        size(memory_bytes=1)


def test_a_sequence_holds_blocks_in_every_group() -> None:
    """With full and sliding layers a sequence needs blocks for both."""
    assert size(groups=(KVGroup(), KVGroup(sliding_window=64))).most_sequences == 1


def test_the_length_is_the_models_or_less() -> None:
    """--max-model-len may shorten what the model was made for, and not lengthen it."""
    assert (resolve_max_model_len(None, model=512), resolve_max_model_len(128, model=512)) == (512, 128)
    with pytest.raises(ConfigurationError, match=r"--max-model-len is 513, but the model was made for at most 512"):
        resolve_max_model_len(513, model=512)
