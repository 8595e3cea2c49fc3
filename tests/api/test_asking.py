"""A client of a server: streams as events, whole answers, and what goes wrong in the server's own words."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from triolet.api.asking.client import Client, Refused
from triolet.api.asking.exchange import Broken, Place, Unreachable
from triolet.api.asking.options import TargetOptions
from triolet.api.asking.target import open_local, reach
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import ConfigurationError, EngineDead, ModelLoadError

from .fake_engine import FakeEngine, opening
from .fake_openai import DONE, event, fake_openai, streamed, text_events, whole
from .rig import serving

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}


def client_of(url: str, **more: Any) -> Client:
    return Client(Place.at(url, **more))


async def text_of(client: Client, body: dict[str, Any] = HI) -> str:
    async with client.stream(CHAT, body) as events:
        choices = [choice async for each in events for choice in each["choices"]]
    return "".join(choice.get("delta", {}).get("content") or choice.get("text", "") for choice in choices)


async def test_a_stream_is_its_events_and_a_post_is_the_answer() -> None:
    """Against our own server, with its key; the bodies go out as they are."""
    async with serving(api_key=("k",)) as rig:
        client = client_of(rig.url + "/v1", api_key="k")
        assert await client.models() == ["fake"]
        assert await text_of(client) == "Hello, wörld 🌍!"
        answer = await client.post(CHAT, b'{"messages": [{"role": "user", "content": "Hi"}]}')
        assert (answer.status, b"Hello" in answer.body) == (200, True)
        assert answer.request_id
        assert (await client.post(CHAT, b"{")).status == 400


async def test_leaving_a_stream_ends_the_request() -> None:
    """Its scope is left while the engine decodes: the engine has it no more."""
    async with serving(FakeEngine(hold="decode")) as rig:
        client = client_of(rig.url)
        async with client.stream(CHAT, HI) as events:
            await anext(events)
        await rig.engine.seen[0].left.wait()
        with trio.CancelScope() as scope:
            async with client.stream(CHAT, HI) as events:
                async for _ in events:
                    scope.cancel()
        await rig.engine.seen[1].left.wait()
        await rig.wait_closed()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=repr)
async def test_events_may_end_in_any_way_and_have_comments_between(line_end: bytes) -> None:
    """Whatever the format of server-sent events allows."""
    events = [b": ping" + line_end * 2, *text_events(3, line_end=line_end)]
    async with fake_openai(lambda body: streamed(events)) as fake:
        client = client_of(fake.url)
        assert await text_of(client) == " word word word"


SAID = {"error": {"message": "No such luck.", "type": "server_error", "param": None, "code": None}}
BROKEN_STREAMS = [
    (whole(404, SAID), Refused, "No such luck."),
    (whole(500, b"<html>"), Refused, "The server answered with status 500."),
    (whole(422, {"detail": "wrong"}), Refused, "wrong"),
    (whole(400, {"error": "plainly wrong"}), Refused, "plainly wrong"),
    (streamed([event({"choices": []}), event(SAID), DONE]), Refused, "No such luck."),
    (streamed([event(b"[1]"), DONE]), Refused, "sent an event that is no JSON object."),
    (streamed([event({"choices": []})]), Broken, "ended the answer before its end."),
    (streamed([event({"choices": []})])[:-8], Broken, "broke off"),
    (b"nonsense\r\n\r\n", Broken, "broke off"),
]


@pytest.mark.parametrize(("said", "kind", "message"), BROKEN_STREAMS)
async def test_what_goes_wrong_is_said_in_the_servers_words(said: bytes, kind: type[Exception], message: str) -> None:
    """A refusal, an error inside a stream, an end that came too early, and what is no HTTP at all."""
    async with fake_openai(lambda body: said) as fake:
        client = client_of(fake.url)
        with pytest.raises(kind) as caught:
            await text_of(client)
    assert message in str(caught.value)


async def test_a_server_that_is_not_there_is_named_with_the_reason() -> None:
    """The system's own words, without a tuple of addresses."""
    with pytest.raises(Unreachable, match=r"^http://127.0.0.1:9 cannot be reached: Connection refused\.$"):
        await client_of("http://127.0.0.1:9").models()


async def test_tls_is_spoken_to_whom_the_machine_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE names an authority of one's own; without it the server is refused, with OpenSSL's reason."""
    authority, files = trustme.CA(), {"ca": tmp_path / "ca.pem", "server": tmp_path / "server.pem"}
    authority.cert_pem.write_to_path(files["ca"])
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(files["server"])
    async with serving(ssl_certfile=str(files["server"])) as rig:
        client = client_of(f"https://localhost:{rig.run.server.port}/v1")
        with pytest.raises(Unreachable, match="unable to get local issuer certificate"):
            await client.models()
        monkeypatch.setenv("SSL_CERT_FILE", str(files["ca"]))
        assert await text_of(client) == "Hello, wörld 🌍!"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (whole(401, SAID), "No such luck."),
        (whole(200, {"models": []}), "lists no models; is it a server of OpenAI's protocol?"),
    ],
)
async def test_a_server_without_models_says_so(models: bytes, message: str) -> None:
    """An error of its own, or another kind of server."""
    async with fake_openai(models=models) as fake:
        client = client_of(fake.url)
        with pytest.raises(Refused) as caught:
            await client.models()
    assert message in str(caught.value)


async def test_the_local_server_answers_as_one_at_a_url_would() -> None:
    """The same routes, around an engine in this process."""
    engine = FakeEngine()
    async with open_local(EngineConfig(), served_names=("mine",), open_engine=opening(engine)) as client:
        assert await client.models() == ["mine"]
        assert await text_of(client) == "Hello, wörld 🌍!"


async def test_leaving_a_local_stream_ends_its_request() -> None:
    """Over the socket file too."""
    engine = FakeEngine(hold="decode")
    async with open_local(EngineConfig(), open_engine=opening(engine)) as client:
        async with client.stream(CHAT, HI) as events:
            await anext(events)
        await engine.seen[0].left.wait()


async def test_an_engine_that_dies_ends_the_scope() -> None:
    """Whoever waits in it hears why at once, and not that a file is gone."""
    engine = FakeEngine(hold="decode")

    async def stay() -> None:
        async with open_local(EngineConfig(), open_engine=opening(engine)):
            engine.die("it broke")
            await trio.sleep_forever()

    with pytest.raises(EngineDead):
        await stay()


async def test_an_engine_that_cannot_start_says_why() -> None:
    """The engine's own StartError, bare."""

    @asynccontextmanager
    async def refuse(*_: Any, **__: Any) -> AsyncIterator[FakeEngine]:
        raise ModelLoadError("x.gguf is damaged.")
        yield

    with pytest.raises(ModelLoadError, match=r"x\.gguf is damaged"):
        async with open_local(EngineConfig(), open_engine=refuse):
            pass


def test_a_server_is_called_from_a_thread_without_a_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """`reach` gives the portal of the commands; a long TMPDIR is no obstacle to a socket file."""
    engine: list[FakeEngine] = []

    @asynccontextmanager
    async def opened(*how: Any, **more: Any) -> AsyncIterator[FakeEngine]:
        engine.append(FakeEngine())
        async with opening(engine[0])(*how, **more) as each:
            yield each

    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with reach(TargetOptions(), EngineConfig(), open_engine=opened) as server:
        assert server.call(partial(text_of)) == "Hello, wörld 🌍!"


def test_a_signal_leaves_no_socket_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SIGTERM in the middle of a call: the call is cancelled, the server stopped, its folder gone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def files() -> list[str]:
        return [path.name for path in tmp_path.glob("triolet-*/*")]

    async def end(_: Client) -> None:
        assert files() == ["socket"]
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()

    def run() -> None:
        with reach(TargetOptions(), EngineConfig(), open_engine=opening(FakeEngine())) as server:
            server.call(end)

    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://[::1]:8000/llm/v1/", "https://[::1]:8000/llm"),
    ],
)
def test_a_url_may_have_its_v1_or_not(url: str, place: str) -> None:
    """And a path in front of it."""
    assert Place.at(url).name == place


def test_a_key_and_a_password_are_never_shown() -> None:
    """The name of a place is for errors."""
    assert "secret" not in repr(Place.at("http://me:secret@a/v1", api_key="secret"))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://a/v1", "http:///v1", "http://a/v1?x=1", "http://a:b/v1", "http://a/b c"]
)
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    """By the flag's name."""
    with pytest.raises(ConfigurationError, match="--url"):
        Place.at(url)
