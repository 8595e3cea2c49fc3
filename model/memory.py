"""How much memory there is, and what a CPU's KV cache gets of it; a GPU's is planned in gpu_memory.py.

The functions take the numbers they measure as optional arguments, so that each rule can be tried without the machine
it is for.
"""

from pathlib import Path

import attrs
import torch

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


@attrs.frozen
class CpuMemory:
    """What a CPU's KV cache gets when the user names nothing, and the line for the log that says why."""

    free: int
    """Bytes that could be allocated when the weights were loaded."""

    @property
    def kv_cache(self) -> int:
        """A quarter of the free memory, at most 4 GiB."""
        return min(self.free // CPU_SHARE, CPU_BYTES_MAX)

    def __str__(self) -> str:
        return (
            f"CPU memory: {self.free / GIB:.2f} GiB free beside the weights, one part in {CPU_SHARE} of it and at most "
            f"{CPU_BYTES_MAX / GIB:g} GiB = {self.kv_cache / GIB:.2f} GiB for the KV cache"
        )


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
