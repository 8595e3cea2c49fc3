"""With keys set the page is no exception: a browser comes in with a key, and its cookie opens files alone."""

import re

import httpx
import pytest

from tests.api.rig import Rig, error_of, serving
from triolet.api.page.entrance import COOKIE
from triolet.api.page.files import page_files

KEY, ADMIN = "a-key", "an-admin-key"
BROWSER = {"accept": "text/html,application/xhtml+xml"}


async def come_in(rig: Rig, key: str = KEY, path: str = "/ui/pass") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return await rig.client.post(path, content=b"{}", headers=headers)


def cookie_of(response: httpx.Response) -> dict[str, str]:
    return {"cookie": response.headers["set-cookie"].partition(";")[0]}


async def test_without_a_key_a_browser_is_shown_where_to_enter_one() -> None:
    """401 as everywhere, with a form whose one script and style are named by their hashes; others get the error."""
    async with serving(api_key=(KEY,)) as rig:
        response = await rig.client.get("/ui", headers=BROWSER)
        assert (response.status_code, response.headers["content-type"]) == (401, "text/html; charset=utf-8")
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
        assert re.search(r"; script-src 'sha256-[^ ]{44}'; style-src 'sha256-[^ ]{44}'; base-uri 'none';", policy)
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert response.headers["cache-control"] == "no-store"
        assert "<form" in response.text
        assert "set-cookie" not in response.headers
        assert error_of(await rig.client.get("/ui"))["code"] == "invalid_api_key"
        for path in ("/ui/", "/ui/js/main.js", "/v1/models", "//ui", "/ui?x=1"):
            answer = await rig.client.get(path, headers=BROWSER)
            assert answer.status_code == 401
            assert ("<form" in answer.text) == (path == "/ui?x=1")


async def test_the_cookie_opens_the_pages_files_and_nothing_else() -> None:
    """Each file, by GET and HEAD; every other route, spelling and method takes the key as before."""
    async with serving(api_key=(KEY,), admin_api_key=(ADMIN,)) as rig:
        entered = await come_in(rig)
        assert (entered.status_code, entered.json()) == (200, {"object": "page.pass"})
        flags = entered.headers["set-cookie"].split("; ")[1:]
        assert flags == ["Path=/ui", "HttpOnly", "SameSite=Strict"]
        cookie = cookie_of(entered)
        for path in page_files():
            assert (await rig.client.get(path, headers=cookie)).status_code == 200
            assert (await rig.client.head(path, headers=cookie)).status_code == 200
            assert (await rig.client.post(path, headers=cookie)).status_code == 401
        others = (
            "/v1/models",
            "/v1/live",
            "/metrics",
            "/admin/settings",
            "//ui",
            "/ui/",
            "/ui/pass",
            "/%75i",
            "/ui/js",
        )
        for path in others:
            assert (await rig.client.get(path, headers=cookie)).status_code == 401, path
        response = await rig.client.post("/v1/chat/completions", json={}, headers=cookie)
        assert response.status_code == 401
        assert not rig.engine.seen


@pytest.mark.parametrize("value", ["", "x", "0" * 64, "a; b", '"', "é".encode().decode("latin-1"), f"{COOKIE}="])
async def test_another_cookie_opens_nothing(value: str) -> None:
    """Nor does the right one of another server."""
    async with serving(api_key=(KEY,)) as other, serving(api_key=(KEY,)) as rig:
        for given in (f"{COOKIE}={value}", value, cookie_of(await come_in(other))["cookie"]):
            response = await rig.client.get("/ui/js/main.js", headers={"cookie": given.encode("latin-1")})
            assert response.status_code == 401


async def test_a_wrong_key_gets_no_cookie() -> None:
    """401, and the form says so."""
    async with serving(api_key=(KEY,)) as rig:
        response = await come_in(rig, "wrong")
        assert response.status_code == 401
        assert "set-cookie" not in response.headers


async def test_where_only_admins_have_a_key_the_page_is_open_and_the_live_view_is_not() -> None:
    """As the chat routes are: whoever may chat may load the page."""
    async with serving(admin_api_key=(ADMIN,)) as rig:
        assert (await rig.client.get("/ui")).status_code == 200
        assert (await rig.client.get("/v1/live")).status_code == 401


async def test_behind_a_proxy_the_cookie_has_the_proxys_path() -> None:
    """With --root-path, and with what the proxy leaves in front of a path."""
    async with serving(api_key=(KEY,), root_path="/llm") as rig:
        entered = await come_in(rig, path="/llm/ui/pass")
        assert "; Path=/llm/ui;" in entered.headers["set-cookie"]
        assert (await rig.client.get("/llm/ui/js/main.js", headers=cookie_of(entered))).status_code == 200
        rig.client.cookies.clear()
        assert (await rig.client.get("/llm/ui", headers=BROWSER)).status_code == 401
