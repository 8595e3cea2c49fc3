"""`triolet bench throughput`, `latency` and `startup`: an engine without HTTP, and servers from their first moment."""

import json
import sys
from pathlib import Path

import pytest

from triolet.api.bench.offline import latency, throughput
from triolet.api.bench.options import BatchOptions, OutputOptions, StartupOptions, ThroughputOptions
from triolet.api.bench.startup import command_line, startup
from triolet.api.bench.target import ServerUnusable
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import Overloaded
from triolet.engine.prompt import TokenPrompt

from .fake_engine import FakeEngine, opening, overloaded
from .fake_openai import text_events


async def test_throughput_hands_every_request_to_the_engine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """After one to warm up: greedy, random tokens of the length asked for, at full length."""
    engine = FakeEngine()
    options = ThroughputOptions(num_requests=3, input_len=7, output_len=4)
    output = OutputOptions(output=tmp_path / "out.json")
    assert await throughput(EngineConfig(), options, output, opening=opening(engine)) == 0
    warm, *measured = engine.seen
    assert warm.params.max_tokens == 2
    assert len(measured) == 3
    for seen in measured:
        assert isinstance(seen.prompt, TokenPrompt)
        assert len(seen.prompt.token_ids) == 7
        assert (seen.params.max_tokens, seen.params.temperature, seen.params.ignore_eos) == (4, 0, True)
    assert "3 of 7 / 4 tokens" in capsys.readouterr().out
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["figures"]["total_tokens_per_s"] > figures["figures"]["output_tokens_per_s"] > 0
    assert figures["settings"]["num_requests"] == 3


async def test_throughput_of_prompts_that_begin_alike_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--prefix-len puts the same tokens in front of all; --json prints the figures and no table."""
    engine = FakeEngine()
    options = ThroughputOptions(num_requests=3, input_len=7, output_len=4, prefix_len=5)
    assert await throughput(EngineConfig(), options, OutputOptions(json=True), opening=opening(engine)) == 0
    prompts = [seen.prompt.token_ids for seen in engine.seen[1:] if isinstance(seen.prompt, TokenPrompt)]
    assert {len(prompt) for prompt in prompts} == {12}
    assert len({prompt[:5] for prompt in prompts}) == 1
    assert len({prompt[5:] for prompt in prompts}) == 3
    assert json.loads(capsys.readouterr().out)["settings"]["prefix_len"] == 5


async def test_latency_measures_batches_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Those to warm up don't count."""
    engine = FakeEngine()
    options = BatchOptions(batch_size=2, input_len=5, output_len=4, iterations=3, warmup=1)
    assert await latency(EngineConfig(), options, OutputOptions(), opening=opening(engine)) == 0
    assert len(engine.seen) == 8
    out = capsys.readouterr().out
    assert "fake: batch of 2, 5 / 4 tokens, 3 times" in out
    assert "each token after" in out


async def test_an_engine_that_refuses_ends_the_benchmark_with_its_error() -> None:
    """One error, not a group of them."""
    engine = FakeEngine()
    engine.refusal = overloaded()
    options = BatchOptions(batch_size=2, iterations=1)
    with pytest.raises(ExceptionGroup) as caught:  # of the fake's nursery
        await latency(EngineConfig(), options, OutputOptions(), opening=opening(engine))
    assert [type(error) for error in caught.value.exceptions] == [Overloaded]


def test_triolet_is_started_with_what_follows() -> None:
    """And with the KV cache that is taken off its memory."""
    words = command_line(StartupOptions(kv_cache_memory=5), ["--max-num-seqs", "8"], 1234)
    assert words[0] == sys.executable
    assert words[3:] == ["serve", "--port", "1234", "--kv-cache-memory", "5", "--max-num-seqs", "8"]
    other = StartupOptions(command="server -m 'a b' --listen :{port}")
    assert command_line(other, [], 1234) == ["server", "-m", "a b", "--listen", ":1234"]


SERVER = f"""
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"data": [{{"id": "m"}}]}}')

    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write({b"".join(text_events(2))!r})

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def test_a_start_is_measured_until_the_first_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With the memory held then; the server is gone afterwards."""
    (tmp_path / "server.py").write_text(SERVER)
    options = StartupOptions(command=f"{sys.executable} {tmp_path}/server.py {{port}}", runs=2, kv_cache_memory=1024)
    assert await startup(options, OutputOptions(output=tmp_path / "out.json")) == 0
    out = capsys.readouterr().out
    assert "s until it has answered" in out
    assert "resident without KV" in out
    first, second = json.loads((tmp_path / "out.json").read_text())["starts"]
    for start in (first, second):
        assert start["answered_s"] > 0
        assert 2**20 < start["resident_bytes"] <= start["peak_bytes"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/no/such/server", "/no/such/server cannot be started: No such file or directory."),
        ("sh -c 'echo no model >&2; exit 3'", "sh did not answer (exit status 3); it wrote last: no model"),
    ],
)
async def test_a_server_that_does_not_start_is_refused_with_its_last_words(command: str, message: str) -> None:
    """Whatever it wrote last."""
    with pytest.raises(ServerUnusable) as caught:
        await startup(StartupOptions(command=command, runs=1), OutputOptions())
    assert caught.value.message == message


async def test_a_server_that_never_answers_is_given_up() -> None:
    """After --timeout, and it is ended."""
    options = StartupOptions(command="tail -f /dev/null", runs=1, timeout=0.001)
    with pytest.raises(ServerUnusable) as caught:
        await startup(options, OutputOptions())
    assert caught.value.message.startswith("tail did not answer; it wrote last: (nothing)")
