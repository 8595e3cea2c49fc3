"""The composition root: from a configuration to the parts of an engine.

With loading.py and shape.py it imports the model room, inside functions, so that importing the engine brings no torch.
Loading runs in parallel: the tokenizer in a worker thread, weights and KV cache (loading.py) where they will be run, in
the device thread or in the runner process. What the machine decides (dtype, blocks) ends up in objects of its own.
"""

import contextlib
import logging
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio

from ..kvcache.manager import KVCacheManager
from .assembly import EngineParts
from .config import EngineConfig
from .core.ids import TokenId
from .core.policy import make_policy
from .core.scheduler import Scheduler, SchedulerConfig
from .device import Runner, ThreadDevice
from .device_process import ProcessDevice
from .engine import EngineFacts
from .loading import Loaded, Progress, make_runner
from .sizing import prefill_share
from .stats import CacheFacts
from .tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from ..model.grammar import Grammars
    from ..model.source import ModelSource

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class RunnerOrder:
    """To a runner process: what to load. The source is one that lies on this machine."""

    config: EngineConfig
    kind: str
    path: str
    name: str


def make_device(config: EngineConfig, progress: Progress | None = None) -> ThreadDevice | ProcessDevice:
    """The carrier that the configuration names."""
    if config.runner == "process":
        return ProcessDevice(f"{__name__}:make_ordered_runner", progress=progress)
    return ThreadDevice()


async def build(
    config: EngineConfig, device: ThreadDevice | ProcessDevice, progress: Progress | None = None
) -> EngineParts:
    """Load the model that the configuration names. `device` must be running.

    Raises ConfigurationError and ModelLoadError. Cancelled, it ends at the next tensor or piece of a download.
    """
    report = partial(_report, progress)
    from ..model.grammar import grammars_of

    source = await trio.to_thread.run_sync(_find_model, config.model, report)
    grammars = grammars_of(source, jump_forward=config.jump_forward)
    tokenizers: list[ChatTokenizer] = []

    async def load_tokenizer() -> None:
        tokenizers.append(await trio.to_thread.run_sync(_load_tokenizer, source, config.chat_template))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load_tokenizer)
            loaded = await _start(config, device, source, report, grammars)
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
    log.info("%s", loaded.size)
    return _put_together(config, device, source.name, tokenizers[0], loaded, grammars)


async def _start(
    config: EngineConfig,
    device: ThreadDevice | ProcessDevice,
    source: "ModelSource",
    report: Progress,
    grammars: "Grammars",
) -> Loaded:
    if isinstance(device, ThreadDevice):
        return await device.start(partial(make_runner, config, source, report, grammars))
    order = RunnerOrder(config=config, kind=source.kind, path=str(source.path), name=source.name)
    loaded = await device.start(order, Loaded)
    # One that replaces it must have the same blocks, whatever memory is free then.
    kv_bytes = loaded.size.num_blocks * loaded.size.bytes_per_block
    device.set_order(attrs.evolve(order, config=attrs.evolve(config, kv_cache_memory=kv_bytes)))
    return loaded


def make_ordered_runner(order: bytes, report: Progress) -> tuple[Runner, Loaded]:
    """A `device_child.Factory`: in the runner process."""
    from ..model.grammar import grammars_of
    from ..model.source import ModelSource

    asked = msgspec.msgpack.decode(order, type=RunnerOrder)
    source = ModelSource(kind=asked.kind, path=Path(asked.path), name=asked.name)  # type: ignore[arg-type]
    # In advance: the engine compiles first, in its own process; the device, which does so again, is waited for then.
    grammars = grammars_of(source, in_advance=True, jump_forward=asked.config.jump_forward)
    return make_runner(asked.config, source, report, grammars)


def _put_together(
    config: EngineConfig,
    device: ThreadDevice | ProcessDevice,
    model_name: str,
    tokenizer: ChatTokenizer,
    loaded: Loaded,
    grammars: "Grammars",
) -> EngineParts:
    size, vocab_size = loaded.size, loaded.vocab_size
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
        prefill_tokens_beside_decodes=prefill_share(config.prefill_tokens_beside_decodes, loaded.device),
    )
    end_token_ids = dict.fromkeys((*loaded.end_token_ids, *tokenizer.eos_token_ids))
    return EngineParts(
        facts=EngineFacts(
            model_name=model_name,
            max_model_len=size.max_model_len,
            vocab_size=vocab_size,
            hidden_size=loaded.hidden_size,
            max_num_seqs=config.max_num_seqs,
            end_token_ids=tuple(TokenId(token) for token in end_token_ids if token < vocab_size),
            seed=config.seed,
            max_logprobs=config.max_logprobs,
            cache=_cache_facts(config, loaded),
        ),
        tokenizer=tokenizer,
        grammars=grammars,
        scheduler=Scheduler(limits, cache, make_policy(config.scheduling_policy)),
        cache=cache,
        device=device,
        max_num_queued_reqs=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens,
        step_timeout_s=config.step_timeout or math.inf,
        max_losses_in_a_row=config.max_runner_losses,
        num_kept_requests=config.num_kept_requests,
        depth=config.max_steps_in_flight or (2 if loaded.device == "cuda" else 1),
        scheduling_policy=config.scheduling_policy,
    )


def _cache_facts(config: EngineConfig, loaded: Loaded) -> CacheFacts:
    return CacheFacts(
        device=loaded.device,
        num_blocks=loaded.size.num_blocks,
        block_size=loaded.size.block_size,
        bytes_per_block=loaded.size.bytes_per_block,
        dtype=loaded.kv_dtype,
        enable_prefix_caching=config.enable_prefix_caching,
        gpu_memory_utilization=config.gpu_memory_utilization,
    )


def _find_model(name: str | None, report: Progress) -> "ModelSource":
    """In a worker thread."""
    from ..model.source import resolve_source

    return resolve_source(name, report)


def _load_tokenizer(source: "ModelSource", chat_template: str | None) -> ChatTokenizer:
    """In a worker thread."""
    from ..model.tokenizer import load_tokenizer

    return load_tokenizer(source, chat_template=chat_template)


def _report(progress: Progress | None, what: str, done: int, total: int | None) -> None:
    """Pass it on, and stop here when whoever waits for the model has been cancelled."""
    # A library may report from a thread of its own, where there is no cancellation to look at.
    with contextlib.suppress(RuntimeError):
        trio.from_thread.check_cancelled()
    if progress is not None:
        progress(what, done, total)
