"""A device that can be looked into: graphs that replay recorded calls on the CPU, results that land late, and a driver
that keeps two steps under way."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.model.running import Driver, Running
from triolet.engine.core.plan import StepResult
from triolet.model.device_step.assemble import make_kernels
from triolet.model.device_step.buckets import decode_sizes, token_sizes
from triolet.model.device_step.executor import StepExecutor
from triolet.model.device_step.graphs import Graphs
from triolet.model.device_step.runner import MOST_STEPS_UNDER_WAY, DeviceRunner
from triolet.model.device_step.transfer import HostTransfers, Int64Array
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel

T = TypeVar("T")


class FakeGraphs:
    """Records every call of torch in a capture, and makes the same calls again, on the same tensors, in a replay: what
    Python decided or read during the capture stays as it was then, as on a GPU."""

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0
        self.num_calls = 0
        """Calls of torch that stand in the graphs."""

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        run()  # the first run of a real one
        recorder = _Recorder()
        with recorder:
            results = run()
        self.num_captures += 1
        self.num_calls += len(recorder.calls)

        def replay() -> T:
            self.num_replays += 1
            for call in recorder.calls:
                call()
            return results

        return replay


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("a graph reads back what a tensor holds")
        outputs = function(*args, **kwargs)
        changes = function._schema.is_mutable
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        made = [t for t in _tensors(outputs) if t.untyped_storage().data_ptr() not in given]
        if changes or made:  # else it is a view: its place follows from its argument's
            self.calls.append(lambda: _again(function, args, kwargs, [] if changes else made))
        return outputs


def _again(function: Any, args: Any, kwargs: Any, made: list[Tensor]) -> None:
    results = _tensors(function(*args, **kwargs))
    for place, result in zip(made, results[-len(made) :] if made else [], strict=True):
        place.copy_(result)


def _tensors(tree: Any) -> list[Tensor]:
    leaves = tree_flatten(tree)[0]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class LateTransfers(HostTransfers):
    """What is downloaded is not there before it is waited for; counts what is uploaded."""

    def __init__(self) -> None:
        self.num_uploads = 0

    def upload(self, array: Any) -> Tensor:
        self.num_uploads += 1
        return super().upload(array)

    def download(self, tensor: Tensor) -> "LateLanding":
        return LateLanding(tensor.clone().numpy())


class LateLanding:
    """Under way until somebody waits."""

    def __init__(self, array: Int64Array) -> None:
        self._array = array
        self._there = False

    def ready(self) -> bool:
        return self._there

    def wait(self) -> Int64Array:
        self._there = True
        return self._array


class DeviceDriver(Driver):
    """A `Driver` over a `DeviceRunner` that keeps steps under way, and poisons what no step may read."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_blocks: int = 128,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_tokens: int = 64,
        graphs: Graphs | None = None,
        pieces: bool = True,
        kv_dtype: torch.dtype | None = None,
        depth: int = MOST_STEPS_UNDER_WAY,
        max_model_len: int | None = None,
        kernels: str = "torch",
    ) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size)
        self.kv = KVTensors(
            model.spec,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=kv_dtype or model.dtype,
            num_spare_blocks=1,
        )
        for tensor in self.kv.tensors:
            tensor.view(torch.uint8).fill_(0xFF)  # NaN in every type
        self.graphs = graphs if graphs is not None else FakeGraphs()
        self.transfers = LateTransfers()
        made = make_kernels(kernels, model, self.kv, num_rows=max_num_seqs)
        self.executor = StepExecutor(
            model,
            self.kv,
            made,
            graphs=self.graphs,
            transfers=self.transfers,
            max_model_len=max_model_len or model.spec.max_position_embeddings,
            decode_sizes=decode_sizes(max_num_seqs),
            token_sizes=token_sizes(max_num_tokens) if pieces else (),
        )
        with torch.inference_mode():
            self.executor.capture()
        self.device_runner = DeviceRunner(
            model, kv=self.kv, kernels=made, executor=self.executor, transfers=self.transfers
        )
        self.runner = self.device_runner  # type: ignore[assignment]
        self.depth = depth
        self._landing: deque[dict[int, tuple[Running, int]]] = deque()

    def launch(self, chunks: Mapping[int, int] | None = None, *, limit: int = 10**6, **fields: Any) -> None:
        """A step whose tokens come later; lands older ones where the device has no room."""
        while len(self._landing) >= self.depth:
            self.land()
        plan, lengths = self.plan(chunks or {}, limit=limit, **fields)
        self.poison()
        self.device_runner.launch(plan)
        expected = {}
        for name, length in lengths.items():
            run = self.running[name]
            run.computed += length
            if length and run.computed == len(run.tokens):
                expected[name] = (run, len(run.tokens))
                run.tokens.append(-1)  # its place
        self._landing.append(expected)

    def land(self) -> StepResult:
        """The oldest step under way."""
        result = self.device_runner.collect()
        expected = self._landing.popleft()
        assert sorted((*result.sequences, *(name for name, _ in result.failed))) == sorted(expected)
        for name, token in zip(result.sequences, result.token_ids, strict=True):
            run, at = expected[name]
            run.tokens[at] = token
        return result

    def land_all(self) -> None:
        while self._landing:
            self.land()

    def poison(self) -> None:
        """What rows behind the batch hold, and what no sequence wrote, may be anything."""
        with torch.inference_mode():
            behind = slice(len(self.device_runner._batch), None)  # as the last step left it
            buffers = self.executor.buffers
            buffers.tokens[behind] = -(10**9)
            buffers.computed[behind] = 10**9
            for column in (buffers.temperature, buffers.top_p, buffers.min_p):
                column[behind] = float("nan")
            for table in buffers.tables:
                table[behind] = -(10**6)

    def generate(self, name: int, count: int, *, limit: int = 10**6) -> list[int]:
        run = self.running[name]
        while len(run.tokens) < run.num_prompt + count:
            self.launch(limit=limit)
        self.land_all()
        return run.tokens[run.num_prompt : run.num_prompt + count]
