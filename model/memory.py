"""How much memory the KV cache gets: on a CPU a share of what is free, on a GPU what a trial run leaves.

The functions take the numbers they measure as optional arguments, so that each rule can be tried without the machine
it is for.
"""

from collections.abc import Callable
from pathlib import Path

import attrs
import torch

from ..engine.core.errors import ConfigurationError

GIB = 1 << 30
CPU_SHARE = 4
"""A CPU's KV cache takes one part in this many of the free memory …"""
CPU_BYTES_MAX = 4 * GIB
"""… and no more than this: a laptop has other work, and decoding there is slow with more context than fits."""


@attrs.frozen(kw_only=True)
class DeviceMemory:
    """Bytes of a device: all of it, and what could be allocated now."""

    total: int
    free: int


def device_memory(device: torch.device | str = "cpu") -> DeviceMemory:
    """What the device has now. On a CPU also a cgroup's limit counts (a container sees its host's memory)."""
    device = torch.device(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total=total, free=free)
    return host_memory()


def free_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that could be allocated on the device now."""
    return device_memory(device).free


def host_memory(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> DeviceMemory:
    """The host's memory from /proc/meminfo, or within the limit of the control group (v2) where that is less."""
    fields: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
        memory = DeviceMemory(total=fields["MemTotal"], free=fields["MemAvailable"])
    except (OSError, KeyError, ValueError, IndexError):
        memory = _sysconf_memory()
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return memory
    return DeviceMemory(total=min(memory.total, limit), free=min(memory.free, max(0, limit - used)))


def default_kv_bytes(device: torch.device | str = "cpu", *, free: int | None = None) -> int:
    """Bytes for a CPU's KV cache when the user names none: a quarter of the free memory, at most 4 GiB."""
    return min((free_memory(device) if free is None else free) // CPU_SHARE, CPU_BYTES_MAX)


def profiled_kv_bytes(
    profile: Callable[[], None],
    *,
    device: torch.device | str,
    utilization: float,
    measure: Callable[[Callable[[], None]], tuple[DeviceMemory, int]] | None = None,
) -> int:
    """Bytes for a GPU's KV cache: run the largest step once without one, then take what `utilization` leaves.

        total * utilization - what is in use now (weights, other processes) - what the step took at its peak on top

    `profile` runs that step; `measure` runs it and gives the memory before it and the bytes of its peak (by default
    torch's own statistics of the device). Raises `ConfigurationError` naming the flag when nothing is left.
    """
    before, peak = (measure or _cuda_measure(torch.device(device)))(profile)
    used = before.total - before.free
    left = int(before.total * utilization) - used - peak
    if left <= 0:
        raise ConfigurationError(
            f"No memory is left for the KV cache: of {before.total / GIB:.2f} GiB, --gpu-memory-utilization "
            f"{utilization} allows {before.total * utilization / GIB:.2f}, {used / GIB:.2f} are in use and a step "
            f"takes {peak / GIB:.2f}. Raise it, or lower --max-num-batched-tokens."
        )
    return left


def _cuda_measure(device: torch.device) -> Callable[[Callable[[], None]], tuple[DeviceMemory, int]]:
    def measure(profile: Callable[[], None]) -> tuple[DeviceMemory, int]:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before, had = device_memory(device), torch.cuda.memory_allocated(device)
        profile()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - had
        torch.cuda.empty_cache()
        return before, peak

    return measure


def _sysconf_memory() -> DeviceMemory:
    """Where there is no /proc (macOS): half of the memory is taken to be free."""
    import os

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceMemory(total=total, free=total // 2)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None
