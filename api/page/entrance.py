"""How a browser comes to the page where a key is set, with nothing but /health left open.

A browser sends no Authorization header when it opens an address. So GET /ui without a key is refused with 401 like any
other route, and what the refusal shows is a form. Its script asks POST /ui/pass with the key as a header, and is given
a cookie: a random value of this process that opens the page's files (GET, their exact paths) and nothing else. It is no
key: every other route still takes the header alone, so no other page can do anything with a reader's cookie.
"""

import base64
import hashlib
import hmac
import re
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any

from ..body import header
from ..config import ServerConfig
from .files import ROOT, entrance_html, page_files
from .reference import PATH as REFERENCE

COOKIE = "triolet_page"

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Of everything that a browser is shown."""

CSP = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"


def _entrance_csp(html: str) -> str:
    """Its one script and its one style are in it: they are allowed by their hashes, and nothing else is."""

    def allowed(tag: str) -> str:
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; connect-src 'self'; script-src {allowed('script')}; style-src {allowed('style')}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Entrance:
    """One server's."""

    def __init__(self, config: ServerConfig) -> None:
        self._pass = secrets.token_hex(32)
        self._path = config.root_path + ROOT
        html = entrance_html()
        self._html = html.encode()
        self._headers = (
            (b"content-security-policy", _entrance_csp(html).encode()),
            (b"cache-control", b"no-store"),
            *HEADERS,
        )

    def cookie(self, *, secure: bool) -> str:
        """To be set on whoever has shown a key."""
        return f"{COOKIE}={self._pass}; Path={self._path}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")

    def lets_in(self, scope: dict[str, Any]) -> bool:
        """Whether a request is for a file of the page, by its target as it came, and has the cookie."""
        path = scope["raw_path"].decode("latin-1")
        if scope["method"] not in ("GET", "HEAD") or not (path == REFERENCE or path in page_files()):
            return False
        given = header(scope["headers"], b"cookie")
        if given is None:
            return False
        try:
            morsel = SimpleCookie(given.decode("latin-1")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode("latin-1"), self._pass.encode())

    def refusal(self, scope: dict[str, Any]) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]] | None:
        """What a browser is shown, with its headers, where it came for the page without a key; None: it did not."""
        wants_html = b"text/html" in (header(scope["headers"], b"accept") or b"")
        if scope["method"] != "GET" or scope["raw_path"] != ROOT.encode() or not wants_html:
            return None
        return self._html, self._headers
