"""What a web page that somebody visits may make its browser send to a server without keys: nothing that is done."""

import pytest

from tests.api.rig import chat, error_of, read_to_end, serving

CHAT = "/v1/chat/completions"
PAGE = {"origin": "https://page.example"}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/admin/pause", "/v1/requests/x/cancel"])
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "text/plain;application/json"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {},
    ],
)
async def test_what_a_page_may_send_unasked_is_refused(path: str, headers: dict[str, str]) -> None:
    """415 for each of the media types that need no preflight, and for none: the engine hears of nothing."""
    async with serving() as rig:
        response = await rig.post(path, chat(), headers={**PAGE, **headers})
        assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")
        assert not rig.engine.seen
        assert not rig.engine.controls.settings.paused


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"])
async def test_json_by_any_of_its_names_is_read(media_type: str) -> None:
    """And a body that has no name at all, from whoever is no web page."""
    async with serving() as rig:
        for headers in ({"content-type": media_type}, {}):
            assert (await rig.post(CHAT, chat(), headers=headers)).status_code == 200


async def test_a_form_is_told_what_to_send() -> None:
    """What curl sends by itself with -d is refused with the header that it lacks."""
    async with serving() as rig:
        response = await rig.post(CHAT, chat(), headers={"content-type": "application/x-www-form-urlencoded"})
        message = error_of(response)["message"]
    assert message == (
        "The body must be JSON: send `Content-Type: application/json`, not 'application/x-www-form-urlencoded'."
    )


async def test_pages_that_may_call_may_send_what_they_like_to_call_nothing() -> None:
    """A page that is named, and the server's own."""
    async with serving(allowed_origins=("https://page.example",)) as rig:
        for origin in ("https://page.example", rig.url):
            assert (await rig.post(CHAT, chat(), headers={"origin": origin})).status_code == 200
        assert (await rig.post(CHAT, chat(), headers={"origin": "https://other.example"})).status_code == 415


@pytest.mark.parametrize(
    "origin",
    [b"http://[", b"http://]", b"\xff\xfe", b"http://x\xe9", b"http://\xe2\x84\x80", b"null", b"", b"x" * 5000],
)
async def test_an_origin_that_is_none_is_no_page_of_ours(origin: bytes) -> None:
    """415 like a strange page's, whatever the header holds: never an error of the server's."""
    async with serving() as rig, await rig.connect() as stream:
        body = b"{}"
        await stream.send_all(
            b"POST %b HTTP/1.1\r\nhost: test\r\norigin: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (CHAT.encode(), origin, len(body), body)
        )
        answer = await read_to_end(stream)
    assert answer.startswith(b"HTTP/1.1 415")
    assert b"unsupported_media_type" in answer
