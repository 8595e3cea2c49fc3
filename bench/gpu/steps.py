"""Step times of a model with random weights, against the roofline of the card, with graphs and without.

The steps go through the runner as the engine's do: plans that hold differences, two under way.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch

from triolet.engine.core.ids import SequenceId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import JoinedSequence, StepPlan
from triolet.kvcache.ids import BlockId
from triolet.model.device_step.assemble import make_kernels
from triolet.model.device_step.executor import StepExecutor
from triolet.model.device_step.graphs import CudaGraphs, NoGraphs
from triolet.model.device_step.runner import DeviceRunner
from triolet.model.device_step.transfer import CudaTransfers, HostTransfers
from triolet.model.formats import quantizer
from triolet.model.gpu_memory import weight_bytes
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel, build_model
from triolet.model.places import layer_parts
from triolet.model.spec import ModelSpec

from .speed import Card
from .table import Row, ratio, wait

GOAL = 0.80
BLOCK = 16


def random_model(spec: ModelSpec, device: torch.device, dtype: torch.dtype, quantization: str) -> LlamaModel:
    """Weights drawn on the device."""

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        shapes = {
            "model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size),
            "model.norm.weight": (spec.hidden_size,),
        }
        if not spec.tied_embeddings:
            shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
        for layer in range(spec.num_layers):
            for parts in layer_parts(spec, layer).values():
                shapes |= parts
        for name, shape in shapes.items():
            yield name, torch.randn(shape, device=device, dtype=dtype) * 0.02

    return build_model(spec, weights(), dtype=dtype, device=device, pack=False, quantize=quantizer(quantization))


class Stand:
    """A model with a cache for `most` sequences of `context` tokens and some more."""

    def __init__(self, model: LlamaModel, *, sizes: tuple[int, ...], context: int, graphs: bool, steps: int) -> None:
        self.model, self.context = model, context
        self._blocks = -(-(context + steps + 8) // BLOCK)
        device = model.device
        self.kv = KVTensors(
            model.spec,
            num_blocks=self._blocks * sizes[-1],
            block_size=BLOCK,
            dtype=model.dtype,
            device=device,
            num_spare_blocks=1,
        )
        for tensor in self.kv.tensors:
            tensor.zero_()
        transfers = CudaTransfers(device) if device.type == "cuda" else HostTransfers()
        kernels = make_kernels("triton", model, self.kv, num_rows=sizes[-1])
        executor = StepExecutor(
            model,
            self.kv,
            kernels,
            graphs=CudaGraphs(device) if graphs and device.type == "cuda" else NoGraphs(),
            transfers=transfers,
            max_model_len=self._blocks * BLOCK,
            decode_sizes=sizes,
            token_sizes=(),
        )
        with torch.inference_mode():
            executor.capture()
        self.runner = DeviceRunner(model, kv=self.kv, kernels=kernels, executor=executor, transfers=transfers)

    def step_seconds(self, batch: int, steps: int) -> float:
        """The median time from one landing to the next, `batch` sequences decoding."""
        self.runner.reset()
        joined = tuple(self._joined(i) for i in range(batch))
        self.runner.launch(StepPlan(step=1, num_tokens=batch, num_sequences=batch, joined=joined))
        times = [time.perf_counter()]
        for step in range(2, steps + 2):
            self.runner.launch(StepPlan(step=step, num_tokens=batch, num_sequences=batch))
            self.runner.collect()
            times.append(time.perf_counter())
        self.runner.collect()
        wait(self.model.device)
        return statistics.median(after - before for before, after in pairwise(times[2:]))

    def _joined(self, index: int) -> JoinedSequence:
        table = tuple(BlockId(index * self._blocks + i) for i in range(self._blocks))
        return JoinedSequence(
            sequence=SequenceId(index + 1),
            token_ids=(TokenId(7),) * self.context,
            num_prompt_tokens=self.context,
            num_computed=self.context - 1,
            block_tables=(table,),
            sampling=SamplingParams(temperature=0),
            seed=0,
        )


def roofline_seconds(model: LlamaModel, card: Card, *, batch: int, context: int, fp8: bool) -> float:
    """What the card needs at least: every weight and the batch's K and V read once, or the products, whichever takes
    longer."""
    spec = model.spec
    table = model.embedding.numel() * model.embedding.element_size()
    kv = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * model.dtype.itemsize
    read = weight_bytes(model) - (0 if spec.tied_embeddings else table) + batch * context * kv
    per_layer = sum(
        rows[0] * rows[1] for parts in layer_parts(spec, 0).values() for rows in parts.values() if len(rows) > 1
    )
    head = spec.vocab_size * spec.hidden_size
    layers_flops, head_flops = (2 * batch * numbers for numbers in (per_layer * spec.num_layers, head))
    fast = card.fp8_flops if fp8 and card.fp8_flops else card.bf16_flops
    return max(read / card.bytes_per_s, layers_flops / fast + head_flops / card.bf16_flops)


def measure_steps(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    card: Card,
    *,
    quantization: str,
    batches: tuple[int, ...],
    context: int,
    steps: int,
) -> list[Row]:
    """Each batch against the roofline; for the smallest also without graphs."""
    model = random_model(spec, device, dtype, quantization)
    stand = Stand(model, sizes=batches, context=context, graphs=True, steps=steps)
    rows = []
    name = "bf16" if quantization == "none" else quantization
    found = {}
    for batch in batches:
        found[batch] = seconds = stand.step_seconds(batch, steps)
        least = roofline_seconds(model, card, batch=batch, context=context, fp8=quantization == "fp8")
        detail = f"{seconds * 1e3:.2f} ms of {least * 1e3:.2f}"
        rows.append(ratio(f"step, {name}, batch {batch}", least / seconds, goal=GOAL, detail=detail))
    del stand
    eager = Stand(model, sizes=batches[:2], context=context, graphs=False, steps=steps)
    for batch in batches[:2]:
        seconds = eager.step_seconds(batch, steps)
        rows.append(
            Row(
                what=f"eager instead of a graph, {name}, batch {batch}",
                value=f"{seconds * 1e3:.2f} ms, {seconds / found[batch]:.2f} times as long",
            )
        )
    return rows
