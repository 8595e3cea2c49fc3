"""The reference page: every route and type of the OpenAPI document, nothing to run, behind the key like all else."""

import re
from html.parser import HTMLParser

import msgspec

from tests.api.rig import serving
from triolet.api.openapi import OPERATIONS, document
from triolet.api.page.reference import PATH, reference

KEY = "a-key"


class Reader(HTMLParser):
    """Keeps what stands in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                assert value not in self.ids
                self.ids.add(value or "")
            elif name in ("href", "src"):
                self.links.add(value or "")
            assert not name.startswith("on")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: bytes) -> Reader:
    reader = Reader()
    reader.feed(page.decode())
    assert reader.open == []
    return reader


async def test_every_route_and_field_is_there() -> None:
    """As the document has them; every link leads to a place of the page or a file beside it; no script."""
    async with serving() as rig:
        response = await rig.client.get(PATH)
        assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert response.headers["content-security-policy"].startswith("default-src 'self';")
        page = read(response.content)
        for operation in OPERATIONS:
            assert f"{operation.method.upper()} {operation.path}" in page.text
        told = (await rig.client.get("/openapi.json")).json()
        for name, schema in told["components"]["schemas"].items():
            assert name in page.ids
            for field in schema.get("properties", {}):
                assert field in page.text
        assert "script" not in page.tags
        assert "integer (at least -1, at most 2147483647) or nullnull" in page.text  # thinking_token_budget
        inner = {link[1:] for link in page.links if link.startswith("#")}
        assert inner <= page.ids
        outer = page.links - {f"#{name}" for name in inner}
        assert outer == {"icon.svg", "css/reference.css"}
        for link in outer:
            assert (await rig.client.get(f"/ui/{link}")).status_code == 200
        moved = await rig.client.get("/docs")
        assert (moved.status_code, moved.headers["location"]) == (308, "ui/docs")


async def test_it_takes_a_key_or_the_pages_cookie() -> None:
    """A browser that has been let in to the page reads it; by GET alone."""
    async with serving(api_key=(KEY,)) as rig:
        for path in (PATH, "/docs"):
            assert (await rig.client.get(path)).status_code == 401
            response = await rig.client.get(path, headers={"authorization": f"Bearer {KEY}"})
            assert response.status_code in (200, 308)
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        entered = await rig.client.post("/ui/pass", content=b"{}", headers=headers)
        cookie = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
        assert (await rig.client.get(PATH, headers=cookie)).status_code == 200
        assert (await rig.client.post(PATH, headers=cookie)).status_code == 401
        for other in (f"{PATH}/", f"/{PATH}", "/docs", "/openapi.json"):
            assert (await rig.client.get(other, headers=cookie)).status_code == 401


def test_what_the_document_says_is_text() -> None:
    """Nothing of it becomes HTML."""
    told = msgspec.json.decode(document("0.1"))
    told["info"]["version"] = "<script>1</script>"
    told["components"]["schemas"]["Message"]["description"] = '<img src="x"> & `a<b`'
    told["components"]["schemas"]["Message"]["properties"]["role"]["default"] = "<b>"
    page = reference(msgspec.json.encode(told)).decode()
    assert not re.search(r"<(script|img)", page)
    assert "&lt;img src=&quot;x&quot;&gt; &amp; <code>a&lt;b</code>" in page
