"""Every route there is: none without a key, all in the OpenAPI document, and no error tells about the machine."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.fake_engine import FakeEngine
from tests.api.rig import chat, error_of, read_to_end, serving
from triolet.api.app import build_app
from triolet.api.config import ServerConfig
from triolet.api.errors import as_http, scrub
from triolet.api.generating import GENERATING
from triolet.api.keys import CONTROL_PREFIXES, KeyRing, is_control
from triolet.api.lifecycle import Lifecycle
from triolet.api.live.route import PATH as LIVE
from triolet.api.metrics import Metrics
from triolet.api.openapi import OPERATIONS
from triolet.api.service import Service
from triolet.engine.core.errors import InvalidRequest, TrioletError, Unauthorized

KEY, ADMIN = "a-key", "an-admin-key"


def server_routes() -> set[tuple[str, str]]:
    """Method and path (its variables without names) of all that the server answers, read off the server."""
    service = Service(
        engine=FakeEngine(),  # type: ignore[arg-type]
        config=ServerConfig(),
        lifecycle=Lifecycle(),
        metrics=Metrics(),
        version="9.9",
    )
    rules = build_app(service).url_map.iter_rules()
    found = {
        (method, re.sub("<[^>]*>", "{}", rule.rule))
        for rule in rules
        for method in (rule.methods or set()) - {"OPTIONS", "HEAD"}
    }
    return found | {("POST", path) for path in GENERATING} | {("GET", LIVE)}


ROUTES = sorted(server_routes())


def test_the_document_has_every_route_and_no_other() -> None:
    """OpenAPI's list and the server's are the same: a new route cannot be forgotten."""
    documented = {(operation.method.upper(), re.sub("{[^}]*}", "{}", operation.path)) for operation in OPERATIONS}
    assert documented == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1] != "/health"])
async def test_every_route_but_health_needs_a_key(method: str, path: str) -> None:
    """401 without a key, with a wrong one, and in every spelling of the path; also HEAD and OPTIONS."""
    path = path.replace("{}", "x")
    spelled = [path, "/" + path, path + "/", "/health/.." + path, f"/%{ord(path[1]):02x}{path[2:]}", f"http://h{path}"]
    async with serving(api_key=(KEY,), admin_api_key=(ADMIN,)) as rig:
        for target in spelled:
            for verb in (method, "HEAD", "OPTIONS"):
                async with await rig.connect() as stream:
                    head = f"{verb} {target} HTTP/1.1\r\nhost: /health\r\nconnection: close\r\n"
                    await stream.send_all(head.encode() + b"x-original-url: /health\r\n\r\n")
                    assert (await read_to_end(stream)).startswith(b"HTTP/1.1 401"), (verb, target)
        response = await rig.client.request(method, path, headers={"authorization": "Bearer wrong"})
        assert response.status_code == 401
        assert not rig.engine.seen


@pytest.mark.parametrize("target", ["/health/", "//health", "/%68ealth", "/health;x", "http://h/health", "/HEALTH"])
async def test_only_the_exact_target_is_open(target: str) -> None:
    """What merely ends up at /health needs the key like anything else; a query changes nothing."""
    async with serving(api_key=(KEY,)) as rig:
        for sent, status in ((target, b"401"), ("/health?x=1", b"200")):
            async with await rig.connect() as stream:
                await stream.send_all(f"GET {sent} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
                assert (await read_to_end(stream)).split(b" ")[1] == status


@pytest.mark.parametrize(
    "path", ["/v1/requests", "/v1/requests/x", "//v1//requests/x", "/admin/x", "/v1/%72equests/x", "/v1/live/blocks/x"]
)
async def test_control_routes_take_an_admin_key(path: str) -> None:
    """With an admin key set, an API key is answered with 403 there, also where no such route exists."""
    there = 200 if path == "/v1/requests" else 404
    async with serving(api_key=(KEY,), admin_api_key=(ADMIN,)) as rig:
        for key, status in ((KEY, 403), (ADMIN, there), ("wrong", 401)):
            async with await rig.connect() as stream:
                head = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
                await stream.send_all(head.encode())
                assert int((await read_to_end(stream)).split(b" ")[1]) == status
    async with serving(admin_api_key=(ADMIN,)) as rig:
        assert (await rig.client.get("/v1/models")).status_code == 200
        assert (await rig.client.get("/admin/x")).status_code == 401


@given(st.text(min_size=1), st.sampled_from([*CONTROL_PREFIXES, "/v1/models", "/health"]))
def test_a_wrong_key_never_opens(text: str, path: str) -> None:
    """Whatever is sent instead of a key, on control routes and others."""
    ring = KeyRing((KEY,), (ADMIN,))
    value = f"Bearer {text}".encode()
    if value.partition(b" ")[2].strip() in (KEY.encode(), ADMIN.encode()):
        return
    with pytest.raises(Unauthorized):
        ring.admit(value, path.encode() + b"?", path)


def test_every_key_is_compared_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """hmac.compare_digest sees each key's digest, of equal length, wherever the right one stands."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("triolet.api.keys.hmac.compare_digest", compare)
    ring = KeyRing(("one", "two", "three"), ("four",))
    identities = set()
    for key in ("one", "two", "three", "four"):
        compared.clear()
        identities.add(ring.admit(f"Bearer {key}".encode(), b"/v1/models", "/v1/models").identity)
        assert len(compared) == 4
        assert {len(digest) for pair in compared for digest in pair} == {32}
    assert len(identities) == 4
    assert is_control("/admin")


TELLING = re.compile(r" at 0x[0-9a-f]+|Traceback|File \"|\.py\b|site-packages|/(?:home|usr|root|tmp|work|opt)/")


class Poisoned(FakeEngine):
    """Whose every request fails with an error that tells too much."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.break_after = 0

        async def encode(_: Any) -> Any:
            raise error

        def decode(_: Any) -> Any:
            raise error

        self.tokenizer.encode = encode  # type: ignore[method-assign]
        self.tokenizer.decode = decode  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "No such file", "/usr/lib/secret.so"),
        RuntimeError(f"broken: {object()!r} in {__file__}"),
        InvalidRequest(f"refused by {object()!r}, see /home/someone/models/secret.py line 3"),
        TrioletError("Cannot read /opt/models/secret"),
    ],
)
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_error_tells_about_the_machine(method: str, path: str, error: Exception) -> None:
    """Every error body of every route, ours, a library's and the client's: no path, no address, no traceback."""
    bodies = [b"", b"{", b"[]", b'{"model":"/etc/passwd"}', b'{"prompt":"a","tokens":[1],"messages":[]}']
    bodies += [b'{"prompt":"a"}', b'{"tokens":[1]}', b'{"messages":[{"role":"a","content":"b"}]}', b"\xff" * 99]
    bodies += [b'{"prompt":"a","stream":true}', b'{"messages":[{"role":"a","content":"b"}],"stream":true}']
    async with serving(Poisoned(error)) as rig:
        for verb in {method, "GET", "POST", "DELETE"}:
            for body in bodies:
                response = await rig.client.request(verb, path.replace("{}", "x"), content=body)
                if path == "/openapi.json" and response.status_code == 200:
                    continue
                assert not TELLING.search(response.text), (verb, response.text)
                assert "secret" not in response.text


def test_a_path_of_our_own_is_no_path_of_the_machine() -> None:
    """Routes, hub names and values stay as they are in messages."""
    for text in ("/v1/models answers GET, not PUT.", "The model `owner/name` does not exist", "1/2", "http://x/usr/a"):
        assert scrub(text) == text
    assert b"/etc" not in as_http(InvalidRequest("no /etc/passwd here")).body


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_pickles_and_import_strings_are_only_text(method: str, path: str, tmp_path: Path) -> None:
    """A pickled body is a 400 on every route that reads one; class names in fields run nothing."""
    canary = tmp_path / "canary"
    pickled = pickle.dumps(Canary(canary))
    named = "os.system('touch " + str(canary) + "')"
    async with serving() as rig:
        for body in (pickled, {"prompt": named, "model": named}, {"logits_processors": [named], **chat(model=named)}):
            if method == "POST":
                response = await rig.post(path.replace("{}", "x"), body)
                if path.startswith("/admin/"):  # they read no body
                    assert response.status_code == 200
                else:
                    assert response.status_code in (400, 404)
                    error_of(response)
    assert not canary.exists()


@pytest.mark.parametrize(
    "target", ["http://[", "http://[/health", "http://]/health", "http://x@[::1/v1/models", "x://%5B["]
)
async def test_a_target_that_is_no_url_is_a_400(target: str) -> None:
    """It ends its connection like anything else that is no HTTP; the server has no error of its own."""
    async with serving(api_key=(KEY,)) as rig:
        for verb in ("GET", "POST"):
            async with await rig.connect() as stream:
                await stream.send_all(f"{verb} {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                answer = await read_to_end(stream)
            assert answer.startswith(b"HTTP/1.1 400")
            assert b"malformed_http" in answer


async def test_an_error_at_the_gate_is_told_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looking at the head of a request fails for a reason of ours: the fixed text of a 500, and no more."""

    def fails(*_: object) -> None:
        raise ValueError("in /usr/lib: secret")

    monkeypatch.setattr("triolet.api.gate.check_media_type", fails)
    async with serving() as rig:
        response = await rig.post("/v1/chat/completions", chat())
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
        assert "secret" not in response.text
        assert (await rig.client.get("/health")).status_code == 200
