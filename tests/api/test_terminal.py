"""`triolet chat` and `complete` as processes: on a terminal with keys that are pressed, and in a pipe."""

import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from .fake_engine import FakeEngine
from .rig import serving

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from triolet.api.cli import main; main(sys.argv[1:])"
CTRL_C, CTRL_D = b"\x03", b"\x04"


@attrs.define
class Terminal:
    """A terminal with a command in it."""

    process: trio.Process
    keys: trio.lowlevel.FdStream
    shown: bytes = b""

    async def press(self, keys: bytes) -> None:
        await self.keys.send_all(keys)

    async def see(self, text: str) -> None:
        """Until the text has been shown since the last one that was waited for."""
        while text.encode() not in self.shown:
            self.shown += await self.keys.receive_some(4096)
        self.shown = self.shown.partition(text.encode())[2]


@asynccontextmanager
async def terminal(*arguments: str) -> AsyncIterator[Terminal]:
    """The command with all three streams on a terminal of its own, which gives it Ctrl-C as a terminal does."""
    ours, theirs = pty.openpty()
    command = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{MAIN}"
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", command, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "INPUTRC": "/dev/null"},
    )
    os.close(theirs)
    async with trio.lowlevel.FdStream(ours) as keys:
        try:
            yield Terminal(process, keys)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def test_ctrl_c_ends_an_answer_at_the_server_and_the_conversation_goes_on() -> None:
    """The request leaves the engine while it decodes; what it said stays; a second Ctrl-C leaves, as Ctrl-D does."""
    async with serving(FakeEngine(hold="decode")) as rig, terminal("chat", "--url", rig.url, "--stats") as seen:
        await seen.see("> ")
        await seen.press(b"Hi\n")
        await seen.see("Hello, ")
        assert rig.engine.open
        await seen.press(CTRL_C)
        await rig.engine.seen[0].left.wait()
        await seen.see("(cancelled)")
        await seen.see("first token after")
        await seen.see("> ")
        rig.engine.release()
        await seen.press(b"And?\n")
        await seen.see("wörld 🌍!")
        await seen.see("4 tokens")
        await seen.see("> ")
        (_, second) = rig.engine.seen
        said = [(message["role"], message["content"]) for message in second.prompt.messages]  # type: ignore[union-attr]
        assert said == [("user", "Hi"), ("assistant", "Hello, "), ("user", "And?")]
        await seen.press(CTRL_C)
        await seen.see("(Ctrl-C again, or Ctrl-D, leaves)")
        await seen.press(CTRL_C)
        assert await seen.process.wait() == 0


async def test_ctrl_d_leaves() -> None:
    """At the prompt, of either command."""
    async with serving() as rig:
        for command in ("chat", "complete"):
            async with terminal(command, "--url", rig.url) as seen:
                await seen.see("> ")
                await seen.press(CTRL_D)
                assert await seen.process.wait() == 0


async def pipe(*arguments: str, given: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
    run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False, cwd=ROOT)
    return await run([sys.executable, "-c", MAIN, *arguments], stdin=given, **more)


async def test_a_pipe_gets_plain_text() -> None:
    """No prompt, no colour; the key comes from the environment, and is sent."""
    environment = {**os.environ, "TRIOLET_API_KEY": "k"}
    async with serving(api_key=("k",)) as rig:
        done = await pipe("chat", "--url", f"{rig.url}/v1", given=b"one\ntwo", env=environment)
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "Hello, wörld 🌍!\n" * 2, b"")
        done = await pipe("complete", "--url", rig.url, given=b"one\ntwo", env=environment)
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "Hello, wörld 🌍!\n", b"")
        assert rig.engine.seen[-1].params.max_tokens == 128


async def test_a_reader_that_goes_ends_the_answer() -> None:
    """As with `triolet chat -q … | head -c 3`: the request is gone too, and no traceback is left."""
    async with serving(FakeEngine(hold="decode")) as rig:
        arguments = [sys.executable, "-c", MAIN, "chat", "--url", rig.url, "-q", "Hi"]
        process = await trio.lowlevel.open_process(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.stdout.receive_some(5) == b"Hello"
        await process.stdout.aclose()
        rig.engine.release()
        assert b"".join([part async for part in process.stderr]) == b""
        assert await process.wait() == 1
        await rig.wait_closed()


async def test_a_server_that_refuses_is_one_line_and_the_exit_status() -> None:
    """2 where nothing could be begun, 1 where an answer failed."""
    async with serving(FakeEngine(max_model_len=40), api_key=("k",)) as rig:
        done = await pipe("chat", "--url", rig.url, "-q", "Hi")
        assert done.returncode == 2
        assert done.stderr.decode().startswith("triolet: ")
        done = await pipe("chat", "--url", rig.url, "--api-key", "k", "-q", "x" * 50)
        assert done.returncode == 1
        assert done.stderr.startswith(b"triolet: The prompt has ")
        assert done.stderr.count(b"\n") == 1
    done = await pipe("complete", "--url", "http://127.0.0.1:9", "-q", "x")
    assert (done.returncode, done.stderr) == (
        2,
        b"triolet: http://127.0.0.1:9 cannot be reached: Connection refused.\n",
    )


async def test_a_model_and_a_url_are_one_too_many() -> None:
    """The engine's flags are of no use to a server that runs."""
    for flags in (("model",), ("--dtype", "float32")):
        done = await pipe("chat", *flags, "--url", "http://127.0.0.1:9")
        message = b"triolet: --url asks a server that runs: leave MODEL and the engine's flags to it.\n"
        assert (done.returncode, done.stderr) == (2, message)
