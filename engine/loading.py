"""The loading half of the composition root: weights, the KV cache in the memory that is left, and the runner over both.

It runs where steps will run: in the device thread or in the runner process. With build.py and shape.py the files of the
engine that import the model room, inside functions, so that importing the engine brings no torch.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import attrs

from .config import EngineConfig
from .device import Runner
from .sizing import (
    KVSize,
    kv_groups,
    num_compute_threads,
    num_cores,
    num_native_threads,
    resolve_max_model_len,
    size_kv_cache,
)

if TYPE_CHECKING:
    import torch

    from ..model.device_step.assemble import StepLimits
    from ..model.device_step.runner import DeviceRunner
    from ..model.grammar import Grammars
    from ..model.llama import LlamaModel
    from ..model.native.choose import NativeChoice
    from ..model.runner import ModelRunner
    from ..model.source import ModelSource
    from ..model.spec import ModelSpec

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called from worker threads with what is under way, the bytes so far, and the bytes in all (None: unknown)."""


@attrs.frozen(kw_only=True)
class Loaded:
    """What the engine has to know of a model that has been loaded."""

    vocab_size: int
    hidden_size: int
    end_token_ids: tuple[int, ...]
    size: KVSize
    device: str = "cpu"
    """cpu or cuda."""
    kv_dtype: str = "auto"


def make_runner(
    config: EngineConfig, source: "ModelSource", report: Progress, grammars: "Grammars"
) -> tuple[Runner, Loaded]:
    """In the device thread or the runner process: weights, then a KV cache in the memory that is left, then the runner
    over both."""
    from ..model.weights import read_spec

    spec = read_spec(source)
    max_model_len = resolve_max_model_len(config.max_model_len, model=spec.max_position_embeddings)
    log.info("model %s: %s, %d layers, %d tokens", source.name, spec.architecture, spec.num_layers, max_model_len)
    runner, loaded = _load(config, source, spec, max_model_len, report)
    runner.use_grammars(grammars)
    return runner, loaded


def _load(
    config: EngineConfig, source: "ModelSource", spec: "ModelSpec", max_model_len: int, report: Progress
) -> tuple["ModelRunner | DeviceRunner", Loaded]:
    import torch

    from ..model.dtype import resolve_dtype
    from ..model.native.choose import choose_native

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = resolve_dtype(config.dtype, spec.torch_dtype, device)
    asks_gpu = device.type == "cuda" or "fp8" in (config.quantization, config.kv_cache_dtype)
    native = None
    if not asks_gpu:
        native = choose_native(
            spec,
            device=device,
            dtype=dtype,
            block_size=config.block_size,
            backend=config.attention_backend,
            quantization=config.quantization,
            kv_cache_dtype=config.kv_cache_dtype,
            progress=report,
        )
    runner: ModelRunner | DeviceRunner
    if native is not None:
        runner, size = _make_native_runner(config, source, spec, max_model_len, report, native)
        kv_dtype = native.kv.name.lower()
    else:
        runner, size, kv_type = _make_torch_runner(config, source, spec, max_model_len, report, device, dtype)
        kv_dtype = str(kv_type).removeprefix("torch.")
    loaded = Loaded(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        end_token_ids=spec.eos_token_ids,
        size=size,
        device=device.type,
        kv_dtype=kv_dtype,
    )
    return runner, loaded


def _make_torch_runner(
    config: EngineConfig,
    source: "ModelSource",
    spec: "ModelSpec",
    max_model_len: int,
    report: Progress,
    device: "torch.device",
    dtype: "torch.dtype",
) -> tuple["ModelRunner | DeviceRunner", KVSize, "torch.dtype"]:
    """The runner, the cache's size and its type."""
    import torch

    from ..model.attention import choose_backend
    from ..model.device_step.assemble import StepLimits, assemble
    from ..model.formats import quantizer, resolve_gpu_formats
    from ..model.kv import KVTensors
    from ..model.llama import build_model
    from ..model.runner import ModelRunner
    from ..model.weights import read_weights, stored_bytes

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(num_compute_threads(num_cores(), torch.get_num_threads()))
    backend = choose_backend(config.attention_backend, device.type).name
    if config.attention_backend is not None:
        backend = config.attention_backend  # A class that was registered under it may call itself something else.
    formats = resolve_gpu_formats(
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        dtype=dtype,
        device=device,
        backend=backend,
    )
    weights = _counted(read_weights(source, spec), stored_bytes(source), report)
    model = build_model(
        spec,
        weights,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        quantize=quantizer(formats.weights),
    )
    held = str(dtype).removeprefix("torch.") if formats.weights == "none" else formats.weights
    log.info("weights loaded as %s on %s, %d compute threads", held, device, torch.get_num_threads())
    limits = StepLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        enforce_eager=config.enforce_eager,
    )
    ahead = runs_ahead(device.type, backend)
    memory_bytes = _kv_memory_bytes(config, model, limits if ahead else None, formats.kv)
    size, layer_groups = _size(config, spec, max_model_len, memory_bytes, spec.head_dim, formats.kv.itemsize)
    kv = KVTensors(
        spec,
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        dtype=formats.kv,
        device=device,
        layer_groups=layer_groups,
        num_spare_blocks=int(ahead),
    )
    if ahead:
        return assemble(model, kv, limits=limits, kernels=backend, report=report), size, formats.kv
    return ModelRunner(model, kv=kv, attention_backend=backend), size, formats.kv


def runs_ahead(device_type: str, backend: str) -> bool:
    """Whether steps keep their state on the device (model/device_step): with the kernels that graphs can hold."""
    return device_type == "cuda" and backend == "triton"


def _make_native_runner(
    config: EngineConfig,
    source: "ModelSource",
    spec: "ModelSpec",
    max_model_len: int,
    report: Progress,
    native: "NativeChoice",
) -> tuple["ModelRunner", KVSize]:
    import torch

    from ..model.native.kv import NativeKV, element_width
    from ..model.native.weights import pack_model
    from ..model.runner import ModelRunner
    from ..model.weights import read_weights, stored_bytes

    # The kernels have threads of their own: two teams that spin would wait for each other's time slices.
    torch.set_num_threads(1)
    num_threads = num_native_threads(num_cores(), os.environ.get("OMP_NUM_THREADS", ""))
    native.library.resize_pool(num_threads)
    weights = _counted(read_weights(source, spec), stored_bytes(source), report)
    model = pack_model(native.library, spec, weights, format=native.weights, max_model_len=max_model_len)
    log.info(
        "weights loaded as %s (%d MiB) for native kernels (%s), up to %d threads",
        *(native.weights.name.lower(), model.num_bytes >> 20, native.library.description, num_threads),
    )
    memory_bytes = config.kv_cache_memory or _cpu_kv_bytes()
    width, element_bytes = element_width(native.kv, spec.head_dim)
    size, layer_groups = _size(config, spec, max_model_len, memory_bytes, width, element_bytes)
    kv = NativeKV(
        native.library,
        spec,
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        format=native.kv,
        layer_groups=layer_groups,
    )
    if config.kv_cache_prefault:
        kv.prefault(config.kv_cache_prefault)
    return ModelRunner(model, kv=kv, num_threads=num_threads), size


def _size(
    config: EngineConfig, spec: "ModelSpec", max_model_len: int, memory_bytes: int, head_dim: int, element_bytes: int
) -> tuple[KVSize, tuple[int, ...]]:
    """The cache's size, and the group of each layer."""
    groups, layer_groups = kv_groups(spec)
    size = size_kv_cache(
        memory_bytes=memory_bytes,
        num_layers=max(layer_groups.count(group) for group in range(len(groups))),
        num_kv_heads=spec.num_kv_heads,
        head_dim=head_dim,
        element_bytes=element_bytes,
        block_size=config.block_size,
        max_model_len=max_model_len,
        groups=groups,
    )
    return size, layer_groups


def _kv_memory_bytes(
    config: EngineConfig, model: "LlamaModel", limits: "StepLimits | None", kv_dtype: "torch.dtype"
) -> int:
    """What was asked for; else on a CPU a share of the free memory, on a GPU what weights, the largest step and graphs
    leave. `limits`: of the graphs that will be recorded; None: none will."""
    from ..model.device_step.assemble import record_largest
    from ..model.gpu_memory import CudaReader, plan_gpu_memory, run_largest_step, weight_bytes

    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    if model.device.type == "cpu":
        return _cpu_kv_bytes()
    largest_step = partial(
        run_largest_step, model, num_tokens=config.max_num_batched_tokens, num_sequences=config.max_num_seqs
    )
    graphs = None
    if limits is not None and not limits.enforce_eager:
        graphs = partial(record_largest, model, limits=limits, kv_dtype=kv_dtype)
    memory = plan_gpu_memory(
        weights=weight_bytes(model),
        utilization=config.gpu_memory_utilization,
        largest_step=largest_step,
        graphs=graphs,
        reader=CudaReader(model.device),
    )
    log.info("%s", memory)
    return memory.kv_cache


def _cpu_kv_bytes() -> int:
    from ..model.memory import CpuMemory, free_memory

    memory = CpuMemory(free_memory())
    log.info("%s", memory)
    return memory.kv_cache


def _counted(
    weights: "Iterable[tuple[str, torch.Tensor]]", total: int | None, report: Progress
) -> "Iterator[tuple[str, torch.Tensor]]":
    """The same weights; the bytes that have passed are reported, of `total` where that is known."""
    num_bytes = 0
    for name, tensor in weights:
        num_bytes += tensor.numel() * tensor.element_size()
        report("Loading weights", num_bytes, total)
        yield name, tensor
