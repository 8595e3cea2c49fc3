"""`triolet bench cancel`: what it counts at our own server, and what it says of one that goes on for nobody."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from property_tests.memory import MemoryDevice
from tests.api.fake_openai import fake_openai, streamed, text_events, whole
from triolet.api.bench.cancelling import cancel, read_counter
from triolet.api.bench.options import CancelOptions, LengthOptions, OutputOptions, ServerOptions
from triolet.api.bench.target import ServerUnusable, probe
from triolet.api.cli import main
from triolet.engine.core.ids import TokenId

from .stage import staged

QUICK = CancelOptions(trials=2, after_events=4, output_len=200, input_len=8, quiet=0.1)


class Chatty(MemoryDevice):
    """Says `a` for ever."""

    def _gather(self, row: Any, *args: Any) -> TokenId:
        super()._gather(row, *args)
        return TokenId(ord("a"))


async def test_our_own_server_stops_when_the_client_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted in /metrics, wasted tokens included: a few of the two hundred that were asked for; the slot is free."""
    async with staged(
        runner=Chatty, step_s=0.003, step_freely=True, max_num_seqs=1, max_num_batched_tokens=32
    ) as stage:
        servers = ServerOptions(base_url=(f"http://127.0.0.1:{stage.port}/v1",))
        output = OutputOptions(output=tmp_path / "out.json")
        assert await cancel(servers, QUICK, LengthOptions(), output) == 0
        counter = await read_counter(await probe(servers.base_url[0], name="A"))
        assert counter is not None
        assert counter >= stage.engine.stats().generation_tokens
    figures = json.loads((tmp_path / "out.json").read_text())["servers"]["A"]
    assert figures["summary"]["tokens_after_counted"] < 100
    assert len(figures["trials"]) == 2
    out = capsys.readouterr().out
    assert "tokens after the client left, counted" in out
    assert "until the slot served another, ms" in out


async def test_a_server_that_does_not_count_is_probed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a counter the tokens are told from the time until the slot served somebody else: about so many."""

    def answer(body: dict[str, Any]) -> Any:
        if body["max_tokens"] <= 2:
            return streamed(text_events(body["max_tokens"]))
        return [streamed(text_events(8))[:-5], *([b""] * 50)] if body["max_tokens"] == 200 else None

    async with fake_openai(answer, models=whole(200, {"data": [{"id": "m"}]})) as fake:
        assert await cancel(ServerOptions(base_url=(fake.url,)), QUICK, LengthOptions(), OutputOptions()) == 0
    out = capsys.readouterr().out
    assert "tokens after the client left, about" in out
    assert "Another was served at once" in out


async def test_a_stream_that_is_over_too_soon_is_said_so() -> None:
    """It names the flag."""
    async with fake_openai(lambda body: streamed(text_events(2))) as fake:
        with pytest.raises(ServerUnusable, match="raise --output-len"):
            await cancel(ServerOptions(base_url=(fake.url,)), QUICK, LengthOptions(), OutputOptions())


def test_flags_out_of_range_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and status 2."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", "cancel", "--slots", "0"])
    assert caught.value.code == 2
    assert "--slots must be at least 1" in capsys.readouterr().err


async def test_nobody_there_is_an_error() -> None:
    """The reason is said."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    servers = ServerOptions(base_url=(f"http://127.0.0.1:{port}",))
    with pytest.raises(ServerUnusable, match="refused"):
        await cancel(servers, QUICK, LengthOptions(), OutputOptions())
