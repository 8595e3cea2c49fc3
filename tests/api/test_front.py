"""Where the server listens and whom it lets in from a browser: socket files, a path in front, CORS, a file of flags."""

import os
import stat
from pathlib import Path

import httpx
import pytest

from triolet.api.config import ServerConfig
from triolet.api.server import Server
from triolet.engine.core.errors import ConfigurationError

from .rig import chat, error_of, serving

CHAT = "/v1/chat/completions"
PAGE = "https://page.example"


async def test_a_socket_file_is_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--uds: mode 0600, the whole API behind it, gone at the end."""
    path = tmp_path / "triolet.sock"
    async with serving(uds=str(path)) as rig:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert capsys.readouterr().out == f"Triolet is ready: unix:{path}\n"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=None, trust_env=False) as client:
            response = await client.post(CHAT, json=chat(stream=True))
            assert response.text.endswith("data: [DONE]\n\n")
        rig.run.stop.set()
        await rig.ended.wait()
    assert not path.exists()


def test_a_socket_file_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    """One in use, and a file that is no socket, are refused by the flag's name and stay."""
    path = tmp_path / "triolet.sock"
    first = Server(ServerConfig(uds=str(path)))
    first._socket.close()  # as when its process was killed
    second = Server(ServerConfig(uds=str(path)))
    second._socket.listen()
    with pytest.raises(ConfigurationError, match=f"Cannot listen on --uds {path}: Address already in use"):
        Server(ServerConfig(uds=str(path)))
    second.close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="--uds"):
        Server(ServerConfig(uds=str(path)))
    assert path.read_text() == "precious"


async def test_a_path_in_front_is_taken_off() -> None:
    """--root-path: with it and without, generating routes and quick ones; what merely begins alike is another path."""
    async with serving(root_path="/llm") as rig:
        for root in ("", "/llm"):
            assert (await rig.post(root + CHAT, chat())).status_code == 200
            assert (await rig.client.get(root + "/v1/models")).status_code == 200
            assert (await rig.client.get(root + "/health")).status_code == 200
        assert (await rig.client.get("/llmore/v1/models")).status_code == 404
        assert (await rig.client.get("/llm/llm/v1/models")).status_code == 404
        assert (await rig.client.get("/openapi.json")).json()["servers"] == [{"url": "/llm"}]


async def test_a_path_in_front_opens_nothing() -> None:
    """Keys are asked for as without it: only /health is open, control routes take an admin key."""
    async with serving(root_path="/llm", api_key=("k",), admin_api_key=("a",)) as rig:
        key = {"authorization": "Bearer k"}
        assert (await rig.client.get("/llm/health")).status_code == 200
        for path in ("/llm/v1/models", "/llm//health", "/llm/health/", "/llm/llm/health", "/llm"):
            assert (await rig.client.get(path)).status_code == 401
        assert (await rig.client.get("/llm/v1/models", headers=key)).status_code == 200
        assert (await rig.client.get("/llm/v1/requests", headers=key)).status_code == 403


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "//llm"])
def test_a_root_path_is_checked(path: str) -> None:
    """A slash in front, none at the end."""
    with pytest.raises(ConfigurationError, match="--root-path"):
        ServerConfig(root_path=path)


PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}


async def test_a_named_page_may_call_and_another_may_not() -> None:
    """A preflight is answered without a key, the call takes one; errors are marked too; a stranger gets no mark."""
    async with serving(allowed_origins=(PAGE,), api_key=("k",)) as rig:
        response = await rig.client.options(CHAT, headers=PREFLIGHT)
        assert response.status_code == 204
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "POST" in response.headers["access-control-allow-methods"]
        assert response.headers["access-control-allow-headers"] == "authorization"
        response = await rig.post(CHAT, chat(stream=True), headers={"origin": PAGE, "authorization": "Bearer k"})
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert response.headers["vary"] == "Origin"
        response = await rig.post(CHAT, chat(), headers={"origin": PAGE})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (401, PAGE)
        stranger = {**PREFLIGHT, "origin": "https://evil.example"}
        response = await rig.client.options(CHAT, headers=stranger)
        assert response.status_code == 401
        assert "access-control-allow-origin" not in response.headers
        response = await rig.post(CHAT, chat(), headers={"origin": "null", "authorization": "Bearer k"})
        assert (response.status_code, response.headers["vary"]) == (415, "Origin")
        assert "access-control-allow-origin" not in response.headers
        assert not rig.engine.open


@pytest.mark.parametrize("origins", [("*",), ('["*"]',)])
async def test_every_page_may_call_where_that_was_said(origins: tuple[str, ...]) -> None:
    """A star, plain or in vLLM's JSON; methods and headers as the flags say."""
    config = {"allowed_origins": origins, "allowed_methods": ("get", "POST"), "allowed_headers": ("x-a", "x-b")}
    async with serving(**config) as rig:
        response = await rig.client.options(CHAT, headers=PREFLIGHT)
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-methods"] == "GET, POST"
        assert response.headers["access-control-allow-headers"] == "x-a, x-b"


async def test_no_page_may_call_by_default() -> None:
    """Without --allowed-origins nothing is marked, and an OPTIONS is like any other."""
    async with serving() as rig:
        response = await rig.client.options(CHAT, headers=PREFLIGHT)
        assert error_of(response)["code"] == "method_not_allowed"
        response = await rig.post(CHAT, chat(), headers={"origin": PAGE})
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_cookies_take_origins_by_name() -> None:
    """--allow-credentials with * is refused; with names it is said to the browser."""
    with pytest.raises(ConfigurationError, match="--allow-credentials takes --allowed-origins by name"):
        ServerConfig(allow_credentials=True, allowed_origins=("*",))
    async with serving(allowed_origins=(PAGE,), allow_credentials=True) as rig:
        response = await rig.client.get("/health", headers={"origin": PAGE})
        assert response.headers["access-control-allow-credentials"] == "true"


async def test_a_preflight_with_a_body_leaves_the_connection_good() -> None:
    """Its body is read and dropped; the next request on the connection is answered."""
    lines = [
        "OPTIONS /x HTTP/1.1",
        "host: x",
        "content-length: 3",
        *(f"{name}: {it}" for name, it in PREFLIGHT.items()),
    ]
    async with serving(allowed_origins=("*",)) as rig, await rig.connect() as stream:
        await stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\nabc")
        await stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        said = b""
        while more := await stream.receive_some(65536):
            said += more
    assert said.startswith(b"HTTP/1.1 204")
    assert b'{"status":"ok"}' in said
