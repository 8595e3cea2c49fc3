"""How much memory the KV cache gets, and which dtype: rules tried without the machines they are for."""

from pathlib import Path

import pytest
import torch

from triolet.engine.core.errors import ConfigurationError, ModelLoadError
from triolet.model import memory
from triolet.model.dtype import bfloat16_is_fast, resolve_dtype
from triolet.model.memory import GIB, CpuMemory, DeviceMemory, host_memory

MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"
)


def machine(folder: Path, *, meminfo: str | None = MEMINFO, **cgroup: str) -> DeviceMemory:
    if meminfo is not None:
        (folder / "meminfo").write_text(meminfo)
    for name, value in cgroup.items():
        (folder / f"memory.{name}").write_text(value)
    return host_memory(proc=folder, cgroup=folder)


def test_a_quarter_of_the_free_memory_but_at_most_4_gib() -> None:
    """The CPU's default, and the line of the log that tells it."""
    assert CpuMemory(8 * GIB).kv_cache == 2 * GIB
    assert CpuMemory(100 * GIB).kv_cache == 4 * GIB
    assert str(CpuMemory(10 * GIB)) == (
        "CPU memory: 10.00 GiB free beside the weights, one part in 4 of it and at most 4 GiB = 2.50 GiB for the KV "
        "cache"
    )


def test_this_machine_has_memory() -> None:
    """The real files of this machine give sane numbers."""
    now = memory.device_memory("cpu")
    assert 0 < now.free <= now.total
    assert 0 < CpuMemory(memory.free_memory()).kv_cache <= 4 * GIB


def test_available_memory_counts_as_free(tmp_path: Path) -> None:
    """What the kernel would give back of its caches is free too."""
    assert machine(tmp_path) == DeviceMemory(total=16 * GIB, free=8 * GIB)


def test_a_container_has_its_own_limit(tmp_path: Path) -> None:
    """The control group's limit less what it uses, where that is less than the host's."""
    assert machine(tmp_path, max=str(6 * GIB), current=str(5 * GIB)) == DeviceMemory(total=6 * GIB, free=GIB)


@pytest.mark.parametrize("limit", ["max", str(10**15)])
def test_a_container_without_a_limit_has_the_host_s(tmp_path: Path, limit: str) -> None:
    """`max`, or a number beyond the machine."""
    assert machine(tmp_path, max=limit, current=str(GIB)).free == 8 * GIB


@pytest.mark.parametrize("meminfo", [None, "nonsense", "MemTotal: much kB\n"])
def test_without_meminfo_half_of_the_memory_is_taken_to_be_free(tmp_path: Path, meminfo: str | None) -> None:
    """Other systems than Linux."""
    found = machine(tmp_path, meminfo=meminfo)
    assert found.free == found.total // 2 > 0


@pytest.mark.parametrize(
    ("requested", "checkpoint", "device", "has_bfloat16", "expected"),
    [
        ("auto", "bfloat16", "cpu", True, torch.bfloat16),
        ("auto", "bfloat16", "cpu", False, torch.float32),
        ("auto", "float16", "cpu", True, torch.bfloat16),
        ("auto", "float16", "cpu", False, torch.float32),
        ("auto", "float32", "cpu", True, torch.float32),
        ("auto", "bfloat16", "cuda", True, torch.bfloat16),
        ("auto", "bfloat16", "cuda", False, torch.float16),
        ("auto", "float16", "cuda", True, torch.float16),
        ("float16", "bfloat16", "cpu", False, torch.float16),
        ("bfloat16", "float32", "cpu", False, torch.bfloat16),
    ],
)
def test_the_dtype_follows_the_user_the_model_and_the_machine(
    requested: str, checkpoint: str, device: str, has_bfloat16: bool, expected: torch.dtype
) -> None:
    """What the user names, or with auto the checkpoint's unless the machine is slow with it."""
    assert resolve_dtype(requested, checkpoint, device, has_bfloat16=lambda _: has_bfloat16) is expected


def test_unknown_dtypes_are_refused() -> None:
    """The flag and the checkpoint's field, each with its own error."""
    with pytest.raises(ConfigurationError, match="--dtype must be auto, float32, bfloat16, float16, not 'int3'"):
        resolve_dtype("int3", "bfloat16")
    with pytest.raises(ModelLoadError, match="The model's torch_dtype 'float8' is not one of"):
        resolve_dtype("auto", "float8")


def test_this_machine_knows_whether_it_has_bfloat16() -> None:
    """A plain answer, whatever it is."""
    assert bfloat16_is_fast(torch.device("cpu")) in (True, False)
