"""TLS by flags: what is spoken, who is let in, and what a wrong file or a slow handshake does."""

import json
import ssl
from pathlib import Path

import attrs
import httpx
import pytest
import trio
import trustme

from tests.api.fake_engine import FakeEngine
from tests.api.rig import Rig, chat, events_of, raw_post, read_to_end, serving
from triolet.api.config import ServerConfig
from triolet.api.door import REFUSALS_PER_TURN
from triolet.api.server import Server
from triolet.engine.core.errors import ConfigurationError


@attrs.frozen
class Files:
    """A certificate authority, and what a server needs of it on disk."""

    authority: trustme.CA
    certificate: str
    key: str
    authorities: str


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key, authorities = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(authorities)
    return Files(authority, str(certificate), str(key), str(authorities))


def client(rig: Rig, files: Files, *, with_certificate: bool = False) -> httpx.AsyncClient:
    context = ssl.create_default_context()
    files.authority.configure_trust(context)
    if with_certificate:
        files.authority.issue_cert("client@example.org").configure_cert(context)
    url = f"https://127.0.0.1:{rig.run.server.port}"
    return httpx.AsyncClient(base_url=url, verify=context, trust_env=False, timeout=None)


async def test_chats_are_answered_over_tls(files: Files) -> None:
    """With a self-signed authority: plain and streamed, and the URL that the server prints says https."""
    async with serving(ssl_certfile=files.certificate, ssl_keyfile=files.key) as rig, client(rig, files) as asks:
        assert rig.run.server.url.startswith("https://127.0.0.1:")
        answer = await asks.post("/v1/chat/completions", content=json.dumps(chat()))
        assert answer.json()["choices"][0]["message"]["content"] == "Hello, wörld 🌍!"
        answer = await asks.post("/v1/chat/completions", content=json.dumps(chat(stream=True)))
        assert len(events_of(answer.text)) == 6


async def test_leaving_over_tls_ends_the_request(files: Files) -> None:
    """As without TLS: the engine loses the request when its client goes."""
    engine = FakeEngine(hold="decode")
    async with serving(engine, ssl_certfile=files.certificate, ssl_keyfile=files.key) as rig:
        async with client(rig, files) as asks:
            body = json.dumps(chat(stream=True))
            async with asks.stream("POST", "/v1/chat/completions", content=body):
                await (await engine.wait_seen()).event("decode").wait()
        await engine.seen[0].left.wait()
        assert not engine.seen[0].finished
        await rig.wait_closed()


async def test_a_reader_that_stalls_over_tls_is_dropped(files: Files) -> None:
    """The write timeout holds there too, and closing does not wait for the client."""
    engine = FakeEngine(pieces=["x" * 100_000] * 10_000)
    settings = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key, "write_timeout": 0.2}
    async with serving(engine, **settings) as rig, client(rig, files) as asks:
        body = json.dumps(chat(stream=True))
        async with asks.stream("POST", "/v1/chat/completions", content=body):
            await (await engine.wait_seen()).left.wait()
            await rig.wait_closed()
        assert not engine.seen[0].finished


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01"])
async def test_what_is_no_handshake_ends_its_connection_alone(files: Files, said: bytes) -> None:
    """Nothing, plain HTTP, or half a hello: nothing is answered in the clear, and the next client is served."""
    settings = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key, "keep_alive_timeout": 0.3}
    async with serving(**settings) as rig, client(rig, files) as asks:
        async with await rig.connect() as stream:
            if said:
                await stream.send_all(said)
            data = b""
            try:
                while more := await stream.receive_some():
                    data += more
            except trio.BrokenResourceError:
                pass
            assert b"HTTP" not in data
        assert (await asks.get("/health")).status_code == 200


async def test_a_full_queue_answers_nobody_in_the_clear(files: Files) -> None:
    """A plain request, whole, is no handshake: no status for it, and none for its key; over TLS it is refused."""
    engine = FakeEngine()
    async with serving(engine, ssl_certfile=files.certificate, ssl_keyfile=files.key, api_key=("key",)) as rig:
        engine.full = True
        for _ in range(2 * REFUSALS_PER_TURN):
            async with await rig.connect() as stream:
                await stream.send_all(raw_post("/v1/chat/completions", chat(), authorization="Bearer key"))
                assert b"HTTP" not in await read_to_end(stream)
        async with client(rig, files) as asks:
            headers = {"authorization": "Bearer key"}
            answer = await asks.post("/v1/chat/completions", content=json.dumps(chat()), headers=headers)
        assert answer.status_code == 503


async def test_clients_may_have_to_show_a_certificate(files: Files) -> None:
    """With --ssl-ca-certs only a client whose certificate one of these has signed is answered."""
    settings = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key, "ssl_ca_certs": files.authorities}
    async with serving(**settings) as rig:
        async with client(rig, files, with_certificate=True) as asks:
            assert (await asks.get("/health")).status_code == 200
        async with client(rig, files) as asks:
            with pytest.raises(httpx.TransportError):
                await asks.get("/health")


async def test_old_versions_are_not_spoken(files: Files) -> None:
    """TLS 1.1 gets no handshake."""
    async with serving(ssl_certfile=files.certificate, ssl_keyfile=files.key) as rig:
        context = ssl.create_default_context()
        files.authority.configure_trust(context)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        async with await rig.connect() as bare:
            with pytest.raises(trio.BrokenResourceError):
                await trio.SSLStream(bare, context, server_hostname="127.0.0.1").do_handshake()


def test_wrong_files_refuse_to_start(files: Files) -> None:
    """One line that names the flag, and no question at the terminal for a password."""
    locked = Path(files.key).with_name("locked.pem")
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    wrong: list[tuple[dict[str, str], str]] = [
        ({"ssl_keyfile": files.key}, "--ssl-keyfile needs --ssl-certfile."),
        ({"ssl_ca_certs": files.authorities}, "--ssl-ca-certs needs --ssl-certfile."),
        ({"ssl_certfile": "/nowhere"}, "--ssl-certfile or --ssl-keyfile cannot be used: No such file"),
        ({"ssl_certfile": files.certificate}, "--ssl-certfile or --ssl-keyfile cannot be used: "),
        ({"ssl_certfile": files.certificate, "ssl_keyfile": str(locked)}, "--ssl-certfile or --ssl-keyfile cannot"),
    ]
    good = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
    wrong += [
        ({**good, "ssl_ciphers": "nonsense"}, "--ssl-ciphers cannot be used: "),
        ({**good, "ssl_ca_certs": files.key}, "--ssl-ca-certs cannot be used: "),
        ({**good, "ssl_client_certs": "required"}, "--ssl-client-certs required needs --ssl-ca-certs."),
    ]
    for settings, says in wrong:
        with pytest.raises(ConfigurationError) as refused:
            Server(ServerConfig(port=0, **settings))  # type: ignore[arg-type]
        assert refused.value.message.startswith(says)
