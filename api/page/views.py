"""The page's routes, in Quart: its files, and the pass that opens them."""

from typing import Any

import msgspec
from quart import Response, redirect, request

from ..errors import NotFound
from ..service import Service
from ..views import answer_json, read_body
from .entrance import CSP, HEADERS
from .files import ROOT, page_files


class PassRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /ui/pass: nothing is asked but what its head says."""


class PageRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[tuple[str, str, Any]]:
        return [
            (ROOT, "GET", self.page),
            (f"{ROOT}/", "GET", self.slash),
            (f"{ROOT}/pass", "POST", self.enter),
            (f"{ROOT}/<path:name>", "GET", self.file),
        ]

    async def page(self) -> Response:
        return _send(ROOT)

    async def slash(self) -> Any:
        """The page's own links are relative to a path without the slash."""
        return redirect("../ui", 308)

    async def file(self, name: str) -> Response:
        return _send(f"{ROOT}/{name}")

    async def enter(self) -> Response:
        """The gate has seen the key. From now on its browser may load the page."""
        await read_body(PassRequest)
        response = answer_json({"object": "page.pass"})
        response.headers["set-cookie"] = self._service.entrance.cookie(secure=request.scheme == "https")
        response.headers["cache-control"] = "no-store"
        return response


def _send(path: str) -> Response:
    file = page_files().get(path)
    if file is None:
        raise NotFound(f"There is no route {path[:256]}.")
    unchanged = request.headers.get("if-none-match") == file.etag
    response = Response(
        b"" if unchanged else file.body, status=304 if unchanged else 200, content_type=file.content_type
    )
    response.headers["etag"] = file.etag
    return _guarded(response)


def send_html(html: bytes) -> Response:
    """A page that was made here, with the headers that the files have."""
    return _guarded(Response(html, content_type="text/html; charset=utf-8"))


def _guarded(response: Response) -> Response:
    response.headers["cache-control"] = "no-cache"
    response.headers["content-security-policy"] = CSP
    for name, value in HEADERS:
        response.headers[name.decode()] = value.decode()
    return response
