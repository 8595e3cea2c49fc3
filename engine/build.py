"""The composition root: from a configuration to the parts of an engine.

The one file of the engine that imports the model room, inside its functions, so that importing the engine brings no
torch. Loading runs in parallel: the tokenizer in a worker thread, weights and KV cache in the device thread, which is
the thread that will run them. What the machine decides (dtype, blocks) ends up in objects of its own.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..kvcache.group import KVGroup
from ..kvcache.manager import KVCacheManager
from .assembly import EngineParts
from .config import EngineConfig
from .core.ids import TokenId
from .core.policy import make_policy
from .core.scheduler import Scheduler, SchedulerConfig
from .device import Runner, ThreadDevice
from .engine import EngineFacts
from .sizing import KVSize, resolve_max_model_len, size_kv_cache
from .tokenizer import ChatTokenizer

if TYPE_CHECKING:
    import torch

    from ..model.llama import LlamaModel
    from ..model.source import ModelSource
    from ..model.spec import ModelSpec

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called from worker threads with what is under way, the bytes so far, and the bytes in all (None: unknown)."""


async def build(config: EngineConfig, device: ThreadDevice, progress: Progress | None = None) -> EngineParts:
    """Load the model that the configuration names. `device` must be running.

    Raises ConfigurationError and ModelLoadError. Cancelled, it ends at the next tensor or piece of a download.
    """
    report = partial(_report, progress)
    source, spec = await trio.to_thread.run_sync(_find_model, config.model, report)
    max_model_len = resolve_max_model_len(config.max_model_len, model=spec.max_position_embeddings)
    log.info("model %s: %s, %d layers, %d tokens", source.name, spec.architecture, spec.num_layers, max_model_len)
    make_runner = partial(_make_runner, config, source, spec, max_model_len, report)
    tokenizers: list[ChatTokenizer] = []

    async def load_tokenizer() -> None:
        tokenizers.append(await trio.to_thread.run_sync(_load_tokenizer, source))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load_tokenizer)
            size = await device.start(make_runner)
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
    log.info("%s", size)
    return _put_together(config, device, source.name, spec, tokenizers[0], size)


def _put_together(
    config: EngineConfig,
    device: ThreadDevice,
    model_name: str,
    spec: "ModelSpec",
    tokenizer: ChatTokenizer,
    size: KVSize,
) -> EngineParts:
    cache = KVCacheManager(
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        groups=size.groups,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    limits = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
    )
    end_token_ids = dict.fromkeys((*spec.eos_token_ids, *tokenizer.eos_token_ids))
    return EngineParts(
        facts=EngineFacts(
            model_name=model_name,
            max_model_len=size.max_model_len,
            vocab_size=spec.vocab_size,
            max_num_seqs=config.max_num_seqs,
            end_token_ids=tuple(TokenId(token) for token in end_token_ids if token < spec.vocab_size),
            seed=config.seed,
        ),
        tokenizer=tokenizer,
        scheduler=Scheduler(limits, cache, make_policy(config.scheduling_policy)),
        cache=cache,
        device=device,
        max_num_queued_reqs=config.max_num_queued_reqs,
    )


def _find_model(name: str | None, report: Progress) -> "tuple[ModelSource, ModelSpec]":
    """In a worker thread."""
    from ..model.source import resolve_source
    from ..model.weights import read_spec

    source = resolve_source(name, report)
    return source, read_spec(source)


def _load_tokenizer(source: "ModelSource") -> ChatTokenizer:
    """In a worker thread."""
    from ..model.tokenizer import load_tokenizer

    return load_tokenizer(source)


def _make_runner(
    config: EngineConfig, source: "ModelSource", spec: "ModelSpec", max_model_len: int, report: Progress
) -> tuple[Runner, KVSize]:
    """In the device thread: weights, then a KV cache in the memory that is left, then the runner over both."""
    import torch

    from ..model.dtype import resolve_dtype
    from ..model.kv import KVTensors
    from ..model.llama import build_model
    from ..model.runner import ModelRunner
    from ..model.weights import read_weights

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(num_compute_threads(_num_cores(), torch.get_num_threads()))
    dtype = resolve_dtype(config.dtype, spec.torch_dtype, device)
    weights = _counted(read_weights(source, spec), report)
    model = build_model(spec, weights, dtype=dtype, device=device, max_model_len=max_model_len)
    dtype_name = str(dtype).removeprefix("torch.")
    log.info("weights loaded as %s on %s, %d compute threads", dtype_name, device, torch.get_num_threads())
    groups, layer_groups = kv_groups(spec)
    size = size_kv_cache(
        memory_bytes=_kv_memory_bytes(config, model),
        num_layers=max(layer_groups.count(group) for group in range(len(groups))),
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        element_bytes=dtype.itemsize,
        block_size=config.block_size,
        max_model_len=max_model_len,
        groups=groups,
    )
    kv = KVTensors(
        spec,
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        dtype=dtype,
        device=device,
        layer_groups=layer_groups,
    )
    return ModelRunner(model, kv=kv, attention_backend=config.attention_backend), size


def num_compute_threads(num_cores: int, default: int) -> int:
    """Threads for one torch operation: torch's default, but a core is left to the event loop.

    At the end of each operation its threads spin until the last is done. Where another thread runs on one of their
    cores they spin for a time slice: with 2 threads on 2 busy cores a step took some 20 times as long as with one.
    """
    return max(1, min(default, num_cores - 1))


def _num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kv_groups(spec: "ModelSpec") -> tuple[tuple[KVGroup, ...], tuple[int, ...]]:
    """The groups of layers with equal visibility, and the group of each layer."""
    windows = [spec.sliding_window if layer in spec.sliding_layers else None for layer in range(spec.num_layers)]
    distinct = list(dict.fromkeys(windows))
    return tuple(KVGroup(sliding_window=window) for window in distinct), tuple(map(distinct.index, windows))


def _kv_memory_bytes(config: EngineConfig, model: "LlamaModel") -> int:
    """What was asked for; else on a CPU a share of the free memory, on a GPU what the largest step leaves."""
    from ..model.memory import default_kv_bytes, profiled_kv_bytes

    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    if model.device.type == "cpu":
        return default_kv_bytes(model.device)
    largest_step = partial(_run_largest_step, model, config.max_num_batched_tokens, config.max_num_seqs)
    return profiled_kv_bytes(largest_step, device=model.device, utilization=config.gpu_memory_utilization)


def _run_largest_step(model: "LlamaModel", num_tokens: int, num_sequences: int) -> None:
    """All that a step allocates but attention's own, which works in blocks: a full budget, every sequence sampled."""
    import torch

    with torch.inference_mode():
        positions = torch.arange(num_tokens, device=model.device) % model.spec.max_position_embeddings
        token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=model.device)
        logits = model.forward(token_ids, positions, lambda layer, q, k, v: q.contiguous(), positions[:num_sequences])
        logits.softmax(-1).sort(-1)


def _counted(weights: "Iterable[tuple[str, torch.Tensor]]", report: Progress) -> "Iterator[tuple[str, torch.Tensor]]":
    """The same weights; the bytes that have passed are reported."""
    num_bytes = 0
    for name, tensor in weights:
        num_bytes += tensor.numel() * tensor.element_size()
        report("Loading weights", num_bytes, None)
        yield name, tensor


def _report(progress: Progress | None, what: str, done: int, total: int | None) -> None:
    """Pass it on, and stop here when whoever waits for the model has been cancelled."""
    # A library may report from a thread of its own, where there is no cancellation to look at.
    with contextlib.suppress(RuntimeError):
        trio.from_thread.check_cancelled()
    if progress is not None:
        progress(what, done, total)
