"""`triolet bench startup`: from the command to the first answer, and the memory that the server then holds.

Imports trio. Memory is read from /proc (Linux): the resident pages of the server and its children, in KiB as the kernel
counts them. A KV cache is resident as far as it has been touched, so the memory without it lies between what is
printed with it and without.
"""

import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio
from rich.table import Table

from ..config import KEY_VARIABLE
from .options import OutputOptions, StartupOptions
from .report import console_for, number, write_figures
from .target import ServerUnusable, probe

POLL_S = 0.01
STOP_S = 20.0
GIB = 1024**3
LAST_WORDS_BYTES = 400

SERVE = "from triolet.api.cli import main; main()"


@attrs.frozen(kw_only=True)
class Start:
    """One start."""

    answered_s: float
    """Until the first request has been answered."""
    resident_bytes: int
    """After that answer."""
    peak_bytes: int


def command_line(options: StartupOptions, arguments: Sequence[str], port: int) -> list[str]:
    """What is run."""
    if options.command is not None:
        return [word.replace("{port}", str(port)) for word in shlex.split(options.command)]
    kv = ["--kv-cache-memory", str(options.kv_cache_memory)] if options.kv_cache_memory else []
    return [sys.executable, "-c", SERVE, "serve", "--port", str(port), *kv, *arguments]


async def startup(options: StartupOptions, report: OutputOptions, arguments: Sequence[str] = ()) -> int:
    """Start a server several times and report. Raises ServerUnusable with the end of what it wrote."""
    starts = [await _start(options, arguments) for _ in range(options.runs)]
    kv = options.kv_cache_memory
    table = Table("", "median", "lowest", "highest", box=None, pad_edge=False, header_style="dim")
    rows = {
        "s until it has answered": [start.answered_s for start in starts],
        "resident, GiB": [start.resident_bytes / GIB for start in starts],
        "peak, GiB": [start.peak_bytes / GIB for start in starts],
    }
    if kv:
        rows["resident without KV, GiB, at least"] = [(start.resident_bytes - kv) / GIB for start in starts]
    for name, values in rows.items():
        table.add_row(name, *(number(value, 2) for value in (statistics.median(values), min(values), max(values))))
    console_for(report).print(table, highlight=False)
    write_figures(report, {"command": "startup", "server": options.command or "triolet serve", "starts": starts})
    return 0


async def _start(options: StartupOptions, arguments: Sequence[str]) -> Start:
    port = await _free_port()
    words = command_line(options, arguments, port)
    with tempfile.TemporaryFile() as log:
        start_s = trio.current_time()
        try:
            process = await trio.lowlevel.open_process(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=_environment()
            )
        except OSError as error:
            raise ServerUnusable(f"{words[0]} cannot be started: {error.strerror}.") from None
        try:
            with trio.move_on_after(options.timeout):
                if await _answers(process, f"http://127.0.0.1:{port}"):
                    return Start(answered_s=trio.current_time() - start_s, **_memory(process.pid))
        finally:
            with trio.CancelScope(shield=True):
                await _stop(process)
        log.seek(0)
        wrote = log.read()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
    ended = "" if process.returncode in (None, 0, -signal.SIGTERM) else f" (exit status {process.returncode})"
    raise ServerUnusable(f"{words[0]} did not answer{ended}; it wrote last: {wrote or '(nothing)'}")


async def _free_port() -> int:
    """A port that was free a moment ago."""
    with trio.socket.socket() as probed:
        await probed.bind(("127.0.0.1", 0))
        return int(probed.getsockname()[1])


def _environment() -> dict[str, str]:
    """Ours, with our path: what can be imported here can be imported there."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


async def _answers(process: trio.Process, url: str) -> bool:
    """True when a request has been answered, False when the process has ended."""
    while process.poll() is None:
        try:
            await probe(url, name="server", api_key=os.environ.get(KEY_VARIABLE) or None)
        except ServerUnusable:
            await trio.sleep(POLL_S)
        else:
            return True
    return False


async def _stop(process: trio.Process) -> None:
    """The server and its children, gently at first."""
    for sign, limit_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        with trio.move_on_after(limit_s):
            await process.wait()


def _memory(pid: int) -> dict[str, int]:
    """Of a process and its descendants, now and at most."""
    resident = peak = 0
    pending = [pid]
    while pending:
        folder = Path(f"/proc/{pending.pop()}")
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            pending += [
                int(child) for task in (folder / "task").iterdir() for child in (task / "children").read_text().split()
            ]
        except (OSError, ValueError):
            continue
        resident += int(status.get("VmRSS", "0 kB").split()[0]) * 1024
        peak += int(status.get("VmHWM", "0 kB").split()[0]) * 1024
    return {"resident_bytes": resident, "peak_bytes": peak}
