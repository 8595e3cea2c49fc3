"""A `DeviceRunner` made of its parts: which kernels, whether graphs, which sizes.

Imports torch. Also what the memory plan wants to know: how much the graphs of a model take.
"""

from collections.abc import Callable

import attrs
import torch

from ..attention.interface import AttentionShape
from ..kv import KVTensors
from ..llama import LlamaModel
from .buckets import decode_sizes, token_sizes
from .executor import StepExecutor
from .graphs import CudaGraphs, Graphs, NoGraphs
from .kernels import Kernels, TorchKernels
from .runner import DeviceRunner
from .transfer import CudaTransfers, HostTransfers, Transfers


@attrs.frozen(kw_only=True)
class StepLimits:
    """What a step may be asked for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enforce_eager: bool = False


def assemble(
    model: LlamaModel,
    kv: KVTensors,
    *,
    limits: StepLimits,
    kernels: str = "triton",
    report: Callable[[str, int, int | None], None] | None = None,
) -> DeviceRunner:
    """A runner whose graphs are recorded. `kv` has a spare block; `report` is told how recording gets on."""
    transfers = _transfers(model.device)
    graphs = _graphs(model.device, limits)
    tokens = token_sizes(limits.max_num_batched_tokens) if not isinstance(graphs, NoGraphs) else ()
    made = make_kernels(kernels, model, kv, num_rows=limits.max_num_seqs)
    executor = StepExecutor(
        model,
        kv,
        made,
        graphs=graphs,
        transfers=transfers,
        max_model_len=limits.max_model_len,
        decode_sizes=decode_sizes(limits.max_num_seqs),
        token_sizes=tokens,
    )
    with torch.inference_mode():
        executor.capture(None if report is None else lambda done, total: report("Recording graphs", done, total))
    return DeviceRunner(model, kv=kv, kernels=made, executor=executor, transfers=transfers)


def record_largest(model: LlamaModel, *, limits: StepLimits, kv_dtype: torch.dtype, kernels: str = "triton") -> object:
    """The graphs of the largest sizes, over a cache of one block: they take the memory while what is returned lives.
    Those of smaller sizes use the same."""
    kv = KVTensors(model.spec, num_blocks=1, block_size=16, dtype=kv_dtype, device=model.device, num_spare_blocks=1)
    executor = StepExecutor(
        model,
        kv,
        make_kernels(kernels, model, kv, num_rows=limits.max_num_seqs),
        graphs=_graphs(model.device, limits),
        transfers=_transfers(model.device),
        max_model_len=limits.max_model_len,
        decode_sizes=decode_sizes(limits.max_num_seqs)[-1:],
        token_sizes=token_sizes(limits.max_num_batched_tokens)[-1:],
    )
    with torch.inference_mode():
        executor.capture()
    return executor


def make_kernels(name: str, model: LlamaModel, kv: KVTensors, *, num_rows: int) -> Kernels:
    """`triton` or `torch`."""
    shape = AttentionShape.of(model.spec)
    if name == "torch":
        return TorchKernels(shape, kv, model.rotary, model.dtype)
    from .triton_kernels import TritonKernels

    return TritonKernels(shape, kv, model.rotary, model.dtype, num_rows=num_rows)


def _transfers(device: torch.device) -> Transfers:
    return CudaTransfers(device) if device.type == "cuda" else HostTransfers()


def _graphs(device: torch.device, limits: StepLimits) -> Graphs:
    return CudaGraphs(device) if device.type == "cuda" and not limits.enforce_eager else NoGraphs()
