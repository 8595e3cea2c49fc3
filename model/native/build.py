"""Compiles the kernels at the first start and keeps the result in the user's cache folder.

Imports the standard library and the cache folder's place alone. A build is named by a hash of all that it depends on:
sources, flags, the compiler and its version, what the CPU can do. It is built once, under a lock, and put in its place
by a rename, so that no process ever sees half a file; a file that was damaged since is built again.
"""

import contextlib
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from ..cache import cache_folder

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-w")
TUNED = (("-march=native",), ("-mcpu=native",), ())
"""Ways to ask for all that this CPU can do; the first that the compiler takes."""
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_S = 600


class NativeUnavailable(Exception):
    """The kernels cannot be built or loaded here; the message says why, and what helps."""


@attrs.frozen(kw_only=True)
class Compiler:
    """A compiler that answered."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """`$CXX`, else c++, g++ or clang++ of the PATH. Raises NativeUnavailable."""
    named = os.environ.get("CXX")
    candidates = [tuple(shlex.split(named))] if named else [(name,) for name in COMPILERS]
    for command in candidates:
        if not command or shutil.which(command[0]) is None:
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
            if answer.returncode == 0:
                return Compiler(command=command, version=answer.stdout)
    if named:
        raise NativeUnavailable(f"the compiler that CXX names ({named}) does not run")
    raise NativeUnavailable(
        f"no C++ compiler was found ({', '.join(COMPILERS)}); install one (Debian: apt install g++) or set CXX"
    )


def build_library(
    *, progress: Callable[[str, int, int | None], None] | None = None, extra_flags: Sequence[str] = ()
) -> Path:
    """The compiled kernels for this machine, built unless they are in the cache. Raises NativeUnavailable."""
    compiler = find_compiler()
    name = _name(compiler, extra_flags)
    folder = cache_folder() / "native"
    target = folder / f"{name}.so"
    if _is_whole(target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{name}.lock"):
            if not _is_whole(target):  # another process may have built it meanwhile
                _build(compiler, target, extra_flags, progress)
    except OSError as error:
        raise NativeUnavailable(f"the kernels cannot be kept in {folder}: {error}") from None
    return target


def _build(
    compiler: Compiler,
    target: Path,
    extra_flags: Sequence[str],
    progress: Callable[[str, int, int | None], None] | None,
) -> None:
    started = time.perf_counter()
    if progress is not None:
        progress("Compiling kernels (once)", 0, None)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        for tuned in TUNED:
            errors = _compile(compiler, output, (*FLAGS, *tuned, *extra_flags))
            if errors is None:
                break
        else:
            raise NativeUnavailable(f"{shlex.join(compiler.command)} cannot compile the kernels: {errors}")
        digest = hashlib.sha256(output.read_bytes()).hexdigest()
        checksum = Path(scratch) / "checksum"
        checksum.write_text(digest)
        os.replace(output, target)
        os.replace(checksum, _checksum_of(target))
    log.info("kernels compiled by %s in %.1f s", compiler.command[0], time.perf_counter() - started)


def _compile(compiler: Compiler, output: Path, flags: Sequence[str]) -> str | None:
    """The files one by one, as many at a time as there are cores, then one link; the end of what the compiler says
    against it."""
    compile_flags = [flag for flag in flags if flag != "-shared"]
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [output.parent / f"{source.stem}.o" for source in sources]
    waiting = [
        [*compiler.command, *compile_flags, "-c", str(source), "-o", str(made)]
        for source, made in zip(sources, objects, strict=True)
    ]
    waiting.sort(key=lambda command: -Path(command[-3]).stat().st_size)
    errors: list[str] = []
    running: list[subprocess.Popen[str]] = []
    while (waiting or running) and not errors:
        while waiting and len(running) < (os.cpu_count() or 1):
            running.append(
                subprocess.Popen(waiting.pop(0), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        process = running.pop(0)
        said, _ = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            errors.append(said)
    for process in running:
        process.kill()
        process.communicate()
    if not errors:
        link = [*compiler.command, *flags, *map(str, objects), "-o", str(output)]
        answer = subprocess.run(link, capture_output=True, text=True, timeout=TIMEOUT_S)
        if answer.returncode:
            errors.append(answer.stderr)
    return errors[0].strip()[-500:] if errors else None


def _name(compiler: Compiler, extra_flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in (*compiler.command, compiler.version, *FLAGS, *extra_flags, platform.machine(), _cpu_features()):
        digest.update(part.encode() + b"\0")
    for source in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _cpu_features() -> str:
    """What the CPU says it can do: a folder may be shared by machines."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.split(":", 1)[1].split()))
    return platform.processor()


def _checksum_of(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _is_whole(target: Path) -> bool:
    try:
        return hashlib.sha256(target.read_bytes()).hexdigest() == _checksum_of(target).read_text()
    except OSError:
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks here: two processes may build at once, and the rename keeps both right
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
