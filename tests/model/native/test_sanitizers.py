"""The kernels under the sanitizers: no access outside memory, no undefined behaviour, no race between threads."""

import platform
import subprocess
from pathlib import Path

import pytest

from triolet.model.native.build import SOURCES, find_compiler

from ...limits import REAL_LIMIT_S

HERE = Path(__file__).parent


def build_and_run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The self test, compiled with these flags and run."""
    binary = folder / "self_test"
    sources = [str(path) for path in (*sorted(SOURCES.glob("*.cpp")), HERE / "self_test.cpp") if path.name != "api.cpp"]
    command = [*find_compiler().command, "-std=c++17", "-pthread", "-w", "-I", str(SOURCES), *flags, *sources]
    built = subprocess.run([*command, "-o", str(binary)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return subprocess.run([str(binary)], capture_output=True, text=True, timeout=4 * REAL_LIMIT_S)


BUILDS = {
    "address and undefined": (
        "-O1",
        "-g",
        "-march=native",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-O1", "-g", "-march=native", "-fsanitize=thread"),
    "portable": ("-O1",),
}
if platform.machine() == "x86_64":
    BUILDS["AVX2"] = ("-O1", "-mavx2", "-mfma", "-mf16c")


@pytest.mark.parametrize("flags", BUILDS.values(), ids=BUILDS)
def test_the_kernels_are_clean(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Mixed steps in every format, by one thread and by several, with the same answers; also without AVX-512."""
    ran = build_and_run(tmp_path, *flags)
    assert (ran.returncode, ran.stdout, ran.stderr[-4000:]) == (0, "fine\n", "")
