"""`triolet run-batch`: rows that equal what HTTP answers, bounded, asked again when a server is busy, and resumable."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.api.asking.client import Answer, Refused
from triolet.api.asking.exchange import Broken, Unreachable
from triolet.api.asking.target import reach
from triolet.api.batch.files import OutputFile, read_lines
from triolet.api.batch.run import TRIES, Batch, ask
from triolet.api.cli import main
from triolet.engine.prompt import Prompt, TextPrompt

from .fake_engine import FakeEngine, opening
from .rig import serving
from .test_batch_files import line, request, rows

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from triolet.api.cli import main; main(sys.argv[1:])"


def answer(status: int = 200, *, retry_after_s: float | None = None) -> Answer:
    return Answer(status=status, body=b'{"x": 1}', request_id="r", retry_after_s=retry_after_s)


@attrs.define
class Script:
    """A server: what it answers, one after the other; the last goes on."""

    says: list[Answer | Exception]
    asked: int = 0
    open: int = 0
    most_open: int = 0

    async def __call__(self, route: str, body: bytes) -> Answer:
        self.asked += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await trio.sleep(1)
        self.open -= 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, Exception):
            raise said
        return said


@pytest.mark.parametrize("trouble", [answer(503), answer(429), answer(502), Unreachable("gone"), Broken("cut")])
async def test_a_server_in_trouble_is_asked_again(
    trouble: Answer | Exception, autojump_clock: trio.testing.MockClock
) -> None:
    """A status that may pass, or a connection that failed, is no row while there are tries left."""
    script = Script([trouble, trouble, answer()])
    row = await ask(script, request("a"))
    assert (script.asked, row.failed) == (3, False)
    assert trio.current_time() == 3 + 1 + 2


async def test_the_servers_own_pause_is_kept_within_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    """A Retry-After of an hour does not hold a run for an hour."""
    await ask(Script([answer(503, retry_after_s=7), answer()]), request("a"))
    assert trio.current_time() == 2 + 7
    await ask(Script([answer(503, retry_after_s=3600), answer()]), request("a"))
    assert trio.current_time() == 9 + 2 + 30


async def test_what_does_not_pass_is_a_row_in_the_end(autojump_clock: trio.testing.MockClock) -> None:
    """With the last answer, or with the reason why there was none."""
    script = Script([answer(503)])
    row = await ask(script, request("a"))
    assert (script.asked, row.response and row.response.status_code) == (TRIES, 503)
    row = await ask(Script([Broken("cut")]), request("a"))
    assert (row.response, row.error and row.error.message) == (None, "cut")


@pytest.mark.parametrize("said", [Unreachable("gone"), answer(401)])
async def test_an_outage_or_a_wrong_key_ends_the_run_and_makes_no_row(
    said: Answer | Exception, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It would be every row's."""
    (tmp_path / "in").write_bytes(b"\n".join(line(name) for name in "abcd"))
    with OutputFile(tmp_path / "out") as output:
        batch = Batch(lines=read_lines(tmp_path / "in"), output=output, ended=lambda _: None)
        with pytest.raises((Unreachable, Refused)):
            await batch.run(Script([said]), concurrency=2)
    assert rows(tmp_path / "out") == []


async def test_no_more_run_at_a_time_than_may(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """And as many as may; every line is asked once, and each is told."""
    (tmp_path / "in").write_bytes(b"\n".join(line(str(number)) for number in range(20)))
    told: list[int] = []
    script = Script([answer()])
    with OutputFile(tmp_path / "out") as output:
        await Batch(lines=read_lines(tmp_path / "in"), output=output, ended=told.append).run(script, concurrency=3)
    assert (script.asked, script.most_open, len(told)) == (20, 3, 20)
    assert sorted(int(row["custom_id"]) for row in rows(tmp_path / "out")) == list(range(20))


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "n": 2}
LINES = [
    line("chat", url="/v1/chat/completions", body=CHAT),
    line("completion", body={"prompt": ["a", "b"], "echo": True, "max_tokens": 2}),
    line("refused", body={"prompt": "a", "temperature": 9}),
    line("unknown", body={"prompt": "a", "model": "other"}),
    b"nonsense",
]


def same(body: Any) -> Any:
    """Without what no two answers have in common."""
    return {key: value for key, value in body.items() if key not in ("id", "created")}


async def command(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False, cwd=ROOT)
    return await run([sys.executable, "-c", MAIN, "run-batch", *map(str, arguments)])


async def test_rows_equal_what_http_answers(tmp_path: Path) -> None:
    """Status and body, of good and of refused requests; the exit status says that some failed."""
    (tmp_path / "in").write_bytes(b"\n".join(LINES))
    async with serving() as rig:
        done = await command("-i", tmp_path / "in", "-o", tmp_path / "out", "--url", rig.url)
        found = {row["custom_id"]: row for row in rows(tmp_path / "out")}
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.decode() == f"triolet: 2 answered, 3 failed: {tmp_path / 'out'}.\n"
        for each in map(json.loads, LINES[:-1]):
            direct = await rig.post(each["url"], each["body"])
            response = found[each["custom_id"]]["response"]
            assert response["status_code"] == direct.status_code
            assert same(response["body"]) == same(direct.json())
            assert response["request_id"]
        assert found[None]["error"]["line"] == 5


class Chosen(FakeEngine):
    """Holds a prompt that says so, in decode."""

    def generate(self, prompt: Prompt, *arguments: Any, **more: Any) -> Any:
        self.hold = "decode" if isinstance(prompt, TextPrompt) and "stay" in prompt.text else None
        return super().generate(prompt, *arguments, **more)


async def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 in the third request: the engine is rid of it, and the next run asks it, and what follows, once."""
    names = ("a", "b", "stay", "d")
    (tmp_path / "in").write_bytes(b"\n".join(line(name, body={"prompt": name}) for name in names))
    arguments = ["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--concurrency", "1"]
    async with serving(Chosen()) as rig:
        process = await trio.lowlevel.open_process([sys.executable, "-c", MAIN, *arguments, "--url", rig.url], cwd=ROOT)
        seen = await rig.engine.wait_seen(3)
        await seen.event("decode").wait()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await seen.left.wait()
        with (tmp_path / "out").open("ab") as file:
            file.write(b'{"id":"batch_req_77","cus')
        rig.engine.release()
        done = await command(*arguments[1:], "--url", rig.url)
        assert done.returncode == 0
        assert b"4 answered, 0 failed (2 of them by earlier runs)" in done.stderr
        assert [row["custom_id"] for row in rows(tmp_path / "out")] == list(names)
        asked = [seen.prompt.text for seen in rig.engine.seen]  # type: ignore[union-attr]
        assert asked == ["a", "b", "stay", "stay", "d"]
        done = await command(*arguments[1:], "--url", "http://127.0.0.1:9")
        assert (done.returncode, len(rig.engine.seen)) == (0, 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_a_run_and_its_requests(number: signal.Signals, tmp_path: Path) -> None:
    """With 128 and its number as the status, and the word that the run can go on."""
    (tmp_path / "in").write_bytes(line(body={"prompt": "stay"}))
    arguments = ["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    async with serving(Chosen()) as rig:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", MAIN, *arguments, "--url", rig.url], cwd=ROOT, stderr=subprocess.PIPE
        )
        seen = await rig.engine.wait_seen()
        process.send_signal(number)
        await seen.left.wait()
        assert process.stderr is not None
        said = b"".join([part async for part in process.stderr])
        assert await process.wait() == 128 + number
    assert said.endswith(b"It is not done: run the same command again to go on.\n")
    assert b"Traceback" not in said


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """The engines that a command has opened in this process: fakes."""
    made: list[FakeEngine] = []

    def open_engine(*arguments: Any, **more: Any) -> Any:
        made.append(FakeEngine())
        return opening(made[-1])(*arguments, **more)

    monkeypatch.setattr("triolet.api.asking.target.reach", partial(reach, open_engine=open_engine))
    monkeypatch.setattr("triolet.api.log.configure_logging", lambda level: None)
    return made


def run(*arguments: str | Path) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(["run-batch", *map(str, arguments)])
    return caught.value.code


def test_without_a_url_the_model_is_loaded_here(
    engine: list[FakeEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the names that requests call it by; a run that has nothing to do loads none."""
    (tmp_path / "in").write_bytes(line(body={"prompt": "a", "model": "mine"}))
    arguments = ("-i", tmp_path / "in", "-o", tmp_path / "out", "--served-model-name", "mine")
    assert run(*arguments) == 0
    assert rows(tmp_path / "out")[0]["response"]["body"]["model"] == "mine"
    assert run(*arguments) == 0
    assert len(engine) == 1
    assert capsys.readouterr().out == ""


def test_failed_requests_are_asked_again_when_told_to(engine: list[FakeEngine], tmp_path: Path) -> None:
    """Not otherwise: the exit status goes on saying that something failed."""
    (tmp_path / "in").write_bytes(line("a", body={"prompt": "a", "model": "mine"}))
    arguments = ("-i", tmp_path / "in", "-o", tmp_path / "out")
    assert (run(*arguments), run(*arguments), len(engine)) == (1, 1, 1)
    assert run(*arguments, "--served-model-name", "mine", "--retry-failed") == 0
    assert [row["response"]["status_code"] for row in rows(tmp_path / "out")] == [200]


def test_an_engine_that_dies_ends_the_run(
    engine: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason and status 1; what has no row is asked by the next run."""

    async def die(self: Batch, post: Any, *, concurrency: int) -> None:
        engine[0].die("it broke")
        await trio.sleep_forever()

    monkeypatch.setattr(Batch, "run", die)
    (tmp_path / "in").write_bytes(line())
    assert run("-i", tmp_path / "in", "-o", tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert "triolet: The engine has " in error
    assert "It is not done" in error


def test_a_full_disk_ends_the_run(
    engine: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is named."""

    def full(*_: Any) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(OutputFile, "append", full)
    (tmp_path / "in").write_bytes(line())
    assert run("-i", tmp_path / "in", "-o", tmp_path / "out") == 1
    assert f"triolet: {tmp_path / 'out'}: No space left on device.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--concurrency", "0"), "--concurrency must be at least 1, not 0."),
        (("--url", "http://127.0.0.1:9"), "http://127.0.0.1:9 cannot be reached: Connection refused."),
        (("--url", "x"), "--url must look like http://127.0.0.1:8000/v1, not 'x'."),
        (("--url", "http://a", "--served-model-name", "x"), "--served-model-name is for a model that is loaded here"),
        (("--url", "http://a", "--dtype", "float32"), "--url asks a server that runs"),
        (("a", "--model", "b"), "Give the model once"),
    ],
)
def test_a_mistake_in_the_flags_is_status_2(
    flags: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, nothing asked; a server that is not there from the start is such a mistake too."""
    (tmp_path / "in").write_bytes(line())
    assert run("-i", tmp_path / "in", "-o", tmp_path / "out", *flags) == 2
    assert f"triolet: {message}" in capsys.readouterr().err
