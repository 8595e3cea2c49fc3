"""The API key: default deny for every route but /health, and no way round."""

import pytest

from .rig import chat, error_of, read_to_end, serving

KEYS = ("first-key", "second-key")

ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/tokenizer_info"),
    ("GET", "/nothing"),
    ("OPTIONS", "/v1/models"),
    ("GET", "/v1/chat/completions"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_route_but_health_answers_without_a_key(method: str, path: str) -> None:
    """401 in the usual shape, before anything else about the request is looked at."""
    async with serving(api_key=KEYS) as rig:
        response = await rig.client.request(method, path, content=b"{" if method == "POST" else None)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = error_of(response)
        assert error["code"] == "invalid_api_key"
        how = "`Authorization: Bearer KEY` (or as `x-api-key`)"
        assert error["message"] == f"The request has no API key: send one as {how}."
        assert (await rig.client.get("/health")).status_code == 200
        assert not rig.engine.seen


@pytest.mark.parametrize("key", KEYS)
async def test_each_key_opens(key: str) -> None:
    """Every one of several keys, the scheme in any case."""
    async with serving(api_key=KEYS) as rig:
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} {key}"}
            assert (await rig.post("/v1/chat/completions", chat(), headers=headers)).status_code == 200
            assert (await rig.client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "value",
    ["Bearer wrong", "Bearer", "first-key", "Basic first-key", "Bearer first-key2", "Bearer first-ke"],
)
async def test_a_wrong_key_is_refused(value: str) -> None:
    """The answer says that the key is wrong, and never repeats it."""
    async with serving(api_key=KEYS) as rig:
        response = await rig.client.get("/v1/models", headers={"authorization": value})
    assert response.status_code == 401
    assert "a wrong API key" in error_of(response)["message"]
    assert "first" not in response.text


@pytest.mark.parametrize(
    "head",
    [
        b"GET /%76%31/models HTTP/1.1\r\nhost: x",
        b"GET //v1/models HTTP/1.1\r\nhost: x",
        b"GET /health/../v1/models HTTP/1.1\r\nhost: x",
        b"GET /health?/v1/models HTTP/1.1\r\nhost: /health\r\nx-forwarded-path: /health",
        b"GET http://x/v1/models HTTP/1.1\r\nhost: /health",
        b"GET http://health/health HTTP/1.1\r\nhost: x",
        b"GET /health%2f..%2fv1/models HTTP/1.1\r\nhost: x",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        b"PRI * HTTP/2.0",
    ],
)
async def test_no_odd_request_gets_round_the_key(head: bytes) -> None:
    """Escaped paths, double slashes, absolute forms, odd hosts, upgrades: none of them shows a model."""
    async with serving(api_key=KEYS) as rig, await rig.connect() as stream:
        await stream.send_all(head + b"\r\nconnection: close\r\n\r\n")
        answer = await read_to_end(stream)
    assert b"max_model_len" not in answer
    status = answer.split(b" ")[1]
    assert status == (b"200" if head.startswith(b"GET /health?") else b"505" if b"PRI" in head else b"401")


async def test_an_absolute_target_is_a_route_like_any_other() -> None:
    """A proxy's form of a request reaches its route."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(b"GET http://x/v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"max_model_len" in await read_to_end(stream)


async def test_a_refused_client_that_sends_a_long_body_still_reads_why() -> None:
    """The rest of the body is dropped, not the answer."""
    async with serving(api_key=KEYS) as rig:
        response = await rig.client.post("/v1/completions", content=b"x" * 3_000_000)
        assert response.status_code == 401
