"""How large the KV cache is, in blocks: derived once, from the memory it gets and the model it serves; and how many
threads compute.

Pure but for counting cores. What memory there is is measured elsewhere (`model/memory.py`); here are the arithmetic,
the refusal and the line for the log.
"""

import os
from collections.abc import Sequence
from typing import Protocol

import attrs

from ..kvcache.arithmetic import block_bytes, longest_sequence, most_sequences, num_blocks_for, num_blocks_that_fit
from ..kvcache.group import KVGroup
from .core.errors import ConfigurationError

MIB = 1 << 20


@attrs.frozen(kw_only=True)
class KVSize:
    """The KV cache of an engine."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_model_len: int
    groups: tuple[KVGroup, ...] = (KVGroup(),)

    @property
    def num_tokens(self) -> int:
        """Of one sequence after another; a model with sliding windows keeps the blocks of several groups for each."""
        return self.num_blocks * self.block_size // len(self.groups)

    @property
    def most_sequences(self) -> int:
        """Sequences of full length that fit at once, sharing nothing."""
        return most_sequences(
            num_blocks=self.num_blocks,
            num_tokens=self.max_model_len,
            block_size=self.block_size,
            groups=self.groups,
        )

    def __str__(self) -> str:
        most = self.most_sequences
        return (
            f"KV cache: {self.num_blocks} blocks of {self.block_size} tokens and {self.bytes_per_block} bytes, "
            f"{self.num_tokens} tokens in {self.num_blocks * self.bytes_per_block / MIB:.0f} MiB; holds at most "
            f"{most} {'sequence' if most == 1 else 'sequences'} of {self.max_model_len} tokens at once"
        )


def size_kv_cache(
    *,
    memory_bytes: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    element_bytes: int,
    block_size: int,
    max_model_len: int,
    groups: tuple[KVGroup, ...] = (KVGroup(),),
) -> KVSize:
    """As many blocks as fit. `num_layers`: those of the largest group.

    Raises ConfigurationError where one sequence of `max_model_len` tokens would not fit (law S6 rests on this).
    """
    size = block_bytes(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        element_bytes=element_bytes,
        block_size=block_size,
    )
    num_blocks = num_blocks_that_fit(memory_bytes=memory_bytes, bytes_per_block=size)
    needed = num_blocks_for(max_model_len, block_size=block_size, groups=groups)
    if num_blocks < needed:
        longest = longest_sequence(num_blocks=num_blocks, most=max_model_len, block_size=block_size, groups=groups)
        raise ConfigurationError(
            f"The KV cache gets {memory_bytes / MIB:.0f} MiB, {num_blocks} blocks of {block_size} tokens: too small "
            f"for one sequence of {max_model_len} tokens, which needs {needed} blocks. Raise --kv-cache-memory to at "
            f"least {needed * size} bytes, or lower --max-model-len to at most {longest}."
        )
    return KVSize(
        num_blocks=num_blocks,
        block_size=block_size,
        bytes_per_block=size,
        max_model_len=max_model_len,
        groups=groups,
    )


def resolve_max_model_len(asked: int | None, *, model: int) -> int:
    """The length to serve: what was asked for, or all that the model was made for. Raises ConfigurationError."""
    if asked is not None and asked > model:
        raise ConfigurationError(
            f"--max-model-len is {asked}, but the model was made for at most {model} tokens (max_position_embeddings)."
        )
    return asked if asked is not None else model


class Layers(Protocol):
    """What counts of a model's spec."""

    @property
    def num_layers(self) -> int: ...
    @property
    def sliding_window(self) -> int | None: ...
    @property
    def sliding_layers(self) -> Sequence[int]: ...


def kv_groups(spec: Layers) -> tuple[tuple[KVGroup, ...], tuple[int, ...]]:
    """The groups of layers with equal visibility, and the group of each layer."""
    windows = [spec.sliding_window if layer in spec.sliding_layers else None for layer in range(spec.num_layers)]
    distinct = list(dict.fromkeys(windows))
    return tuple(KVGroup(sliding_window=window) for window in distinct), tuple(map(distinct.index, windows))


def num_compute_threads(num_cores: int, default: int) -> int:
    """Threads for one torch operation: torch's default, but a core is left to the event loop.

    At the end of each operation its threads spin until the last is done. Where another thread runs on one of their
    cores they spin for a time slice: with 2 threads on 2 busy cores a step took some 20 times as long as with one.
    """
    return max(1, min(default, num_cores - 1))


def num_native_threads(num_cores: int, asked: str) -> int:
    """Most threads of a native step: what OMP_NUM_THREADS says (`asked`, perhaps a list by level), else all cores: a
    step that shares them with the event loop finds out by itself how many are best."""
    first = asked.partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) else num_cores


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prefill_share(asked: int | None, device: str) -> int:
    """Most prompt tokens in a step beside decodes, 0 for no limit: what was asked for, else 320 on a CPU. So many
    tokens of a small model take some 0.15 s there, and a stream beside them stands still for no longer."""
    if asked is not None:
        return asked
    return 320 if device == "cpu" else 0
