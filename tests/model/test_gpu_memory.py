"""The arithmetic of a GPU's memory, with a device that says what it is told to."""

from collections.abc import Callable

import pytest

from tests.model.running import our_model, reference_model
from triolet.engine.core.errors import ConfigurationError
from triolet.model.gpu_memory import GpuMemory, plan_gpu_memory, run_largest_step, weight_bytes
from triolet.model.memory import GIB, DeviceMemory


class Reader:
    """A GPU of these sizes, in GiB; notes what it was asked to run."""

    def __init__(self, *, total: float, free: float, peak: float, graphs: float = 0) -> None:
        self.memory = DeviceMemory(total=int(total * GIB), free=int(free * GIB))
        self.peak, self.graphs = int(peak * GIB), int(graphs * GIB)
        self.asked: list[str] = []

    def now(self) -> DeviceMemory:
        self.asked.append("now")
        return self.memory

    def peak_of(self, run: Callable[[], None]) -> int:
        run()
        self.asked.append("peak")
        return self.peak

    def kept_by(self, make: Callable[[], object]) -> int:
        make()
        self.asked.append("graphs")
        return self.graphs


def plan(reader: Reader, *, utilization: float = 0.9, graphs: Callable[[], object] | None = list) -> GpuMemory:
    return plan_gpu_memory(
        weights=15 * GIB, utilization=utilization, largest_step=lambda: None, graphs=graphs, reader=reader
    )


def test_a_gpu_is_filled_up_to_its_share() -> None:
    """Total × utilization, less what is in use, the peak of a step, and the graphs; and the log's line says so."""
    reader = Reader(total=80, free=64, peak=4, graphs=1)
    found = plan(reader)
    assert reader.asked == ["now", "peak", "graphs"]
    assert found.kv_cache == int(80 * GIB * 0.9) - 16 * GIB - 4 * GIB - GIB
    assert str(found) == (
        "GPU memory: 80.00 GiB × 0.9 − weights 15.00 − in use beside them 1.00 − the largest step 4.00 − graphs 1.00 "
        "= 51.00 GiB for the KV cache"
    )


def test_without_graphs_none_are_recorded() -> None:
    """--enforce-eager, and backends that graphs cannot hold."""
    reader = Reader(total=80, free=64, peak=4, graphs=1)
    assert plan(reader, graphs=None).graphs == 0
    assert reader.asked == ["now", "peak"]


def test_a_full_gpu_is_refused_with_its_arithmetic() -> None:
    """The message names the flags and every number."""
    with pytest.raises(ConfigurationError) as error:
        plan(Reader(total=20, free=4, peak=4))
    assert str(error.value) == (
        "No memory is left for the KV cache. GPU memory: 20.00 GiB × 0.9 − weights 15.00 − in use beside them 1.00 − "
        "the largest step 4.00 − graphs 0.00 = -2.00 GiB for the KV cache. Raise --gpu-memory-utilization, or lower "
        "--max-num-batched-tokens or --max-num-seqs; --quantization fp8 halves the weights."
    )


def test_weights_are_counted_once() -> None:
    """All that the checkpoint has, and a head that is the embedding is not counted again."""
    for tied in (False, True):
        reference = reference_model("llama", tie_word_embeddings=tied)
        expected = sum(parameter.numel() * 4 for parameter in reference.parameters())
        assert weight_bytes(our_model(reference, pack=False)) == expected


def test_the_largest_step_runs_without_a_cache() -> None:
    """A full budget through every layer, and every sequence's logits."""
    run_largest_step(our_model(reference_model("llama")), num_tokens=40, num_sequences=8)
