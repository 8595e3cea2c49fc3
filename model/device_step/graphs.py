"""Recorded work of the device: captured once, replayed with one call.

What is captured reads and writes tensors that stay where they are; between replays their contents change, never their
places. It decides nothing by what the tensors hold, and reads nothing back.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


@contextmanager
def _no_collection() -> Iterator[None]:
    """A graph that is collected while another is recorded would break it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graphs(Protocol):
    """A way to record."""

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        """`run` recorded: each call of what comes back does its work anew and returns the tensors that hold the
        results, valid until the next call. `run` is called here, perhaps several times, and must leave no trace."""


class NoGraphs:
    """`--enforce-eager`: nothing is recorded, `run` is called each time."""

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        return run


class CudaGraphs:
    """CUDA graphs that share one pool of memory: they are replayed one after the other, never at the same time, so that
    the temporaries of all take as much as those of the largest. Capture the largest first."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._warm = False

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Libraries set themselves up, and kernels are compiled, in a first run: neither may happen in a capture.
            run()
            self._stream.synchronize()
            if not self._warm:
                gc.collect()
                torch.cuda.empty_cache()
                self._warm = True
            graph = torch.cuda.CUDAGraph()
            with _no_collection():
                # Of this thread's calls: what others do meanwhile is no part of it.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    results = run()
                finally:
                    graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)

        def replay() -> T:
            graph.replay()
            return results

        return replay
