"""The page's files: all there, small, from nowhere else, and nothing in them reads a text as HTML."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.api.rig import error_of, serving
from triolet.api.page.files import page_files
from triolet.api.page.reference import PATH as REFERENCE

STATIC = Path(__file__).parents[3] / "api" / "page" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
OURS = [path for path in FILES if "vendor" not in path.parts]

FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc")

UPLOT = {
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""What uplot 1.6.32 of the npm registry has, byte for byte."""


async def test_every_file_is_served_with_headers_that_keep_others_out() -> None:
    """Its type, a strict policy, no sniffing, no framing; asked for again, 304."""
    async with serving() as rig:
        for path, file in page_files().items():
            response = await rig.client.get(path)
            assert (response.status_code, response.content) == (200, file.body)
            assert response.headers["content-type"] == file.content_type
            assert response.headers["content-security-policy"] == (
                "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
            )
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["x-frame-options"] == "DENY"
            assert response.headers["referrer-policy"] == "no-referrer"
            again = await rig.client.get(path, headers={"if-none-match": response.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        some = {"/ui", "/ui/js/main.js", "/ui/css/base.css", "/ui/icon.svg", "/ui/vendor/uplot/uPlot.esm.js"}
        assert some <= set(page_files())
        response = await rig.client.get("/ui/")
        assert (response.status_code, response.headers["location"]) == (308, "../ui")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/index.html",
        "/ui/entrance.html",
        "/ui/../entrance.html",
        "/ui/%2e%2e/entrance.html",
        "/ui/js/",
        "/ui//js/main.js",
        "/ui/vendor/uplot/LICENSE",
        "/ui/..%2f..%2fkeys.py",
        "/ui/js/main.js%00",
    ],
)
async def test_what_is_no_file_of_the_page_is_not_there(path: str) -> None:
    """Only the exact names of the list: no way leads out of the folder."""
    async with serving() as rig:
        response = await rig.client.get(path)
        assert response.status_code == 404
        assert error_of(response)["code"] == "not_found"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_file_of_the_page_is_small_and_fetches_nothing(path: Path) -> None:
    """No more than 400 lines; no address of another machine; no string becomes HTML or code."""
    text = path.read_text()
    assert text.count("\n") <= 400
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text.replace("http://www.w3.org/2000/svg", ""))
    for forbidden in FORBIDDEN:
        assert forbidden not in text
    assert not re.search(r"<[a-z][^>]*\s(style|on[a-z]+)=", text), "an attribute that the policy forbids"


def test_every_module_that_is_imported_is_there() -> None:
    """Imports are relative, and so is what the HTML names."""
    for path in FILES:
        if path.suffix == ".js":
            for name in re.findall(r"^(?:import|export)\b[^;]*?from \"([^\"]+)\"", path.read_text(), re.MULTILINE):
                assert name.startswith("."), (path.name, name)
                assert (path.parent / name).is_file(), (path.name, name)
    for name in re.findall(r'(?:href|src)="ui/([^"]+)"', (STATIC / "index.html").read_text()):
        assert (STATIC / name).is_file() or f"/ui/{name}" == REFERENCE, name


@pytest.mark.parametrize("name", UPLOT)
def test_the_charts_are_as_they_were_published(name: str) -> None:
    """The vendored library is unchanged, and its licence lies beside it."""
    data = (STATIC / "vendor" / "uplot" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == UPLOT[name]
