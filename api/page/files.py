"""The files of the page, read once from the package: what is not among them does not exist, whatever a path says."""

import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import attrs

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By the end of a name; other files are not served."""

ROOT = "/ui"


@attrs.frozen(kw_only=True)
class PageFile:
    """One file."""

    body: bytes
    content_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """By the path that each is asked for by: /ui, /ui/js/chat.js, …"""
    static = resources.files(__package__) / "static"
    found = {f"{ROOT}/{name}": _read(entry) for name, entry in _walk(static, "")}
    found[ROOT] = found.pop(f"{ROOT}/index.html")
    return found


@cache
def entrance_html() -> str:
    """What is shown to a browser that has brought no key."""
    return (resources.files(__package__) / "entrance.html").read_text("utf-8")


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif any(entry.name.endswith(end) for end in TYPES):
            found.append((prefix + entry.name, entry))
    return found


def _read(entry: Traversable) -> PageFile:
    body = entry.read_bytes()
    content_type = TYPES[entry.name[entry.name.rindex(".") :]]
    return PageFile(body=body, content_type=content_type, etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"')
