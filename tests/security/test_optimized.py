"""No check of ours is an assertion: under `python -O` every hostile request is answered as it is without."""

import json
import os

import httpx
import pytest

from tests.api.rig import chat

from ..limits import REAL_LIMIT_S
from .server import running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

HOSTILE: list[tuple[str, str, bytes, bool, int]] = [
    ("GET", "/v1/models", b"", False, 401),
    ("GET", "//v1/models", b"", False, 401),
    ("POST", COMPLETIONS, b"{", False, 401),
    ("GET", "/v1/requests/x", b"", True, 403),
    ("POST", COMPLETIONS, b"{", True, 400),
    ("POST", COMPLETIONS, b"x" * 3_000_000, True, 413),
    ("POST", COMPLETIONS, json.dumps({"prompt": [10**6]}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": [255] * 5000}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": ""}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": "a", "n": 10**9}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": "a", "n": 100}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": "a", "stop_token_ids": [999]}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": "a", "min_tokens": 3000}).encode(), True, 400),
    ("POST", COMPLETIONS, json.dumps({"prompt": "a", "cache_salt": "a\0"}).encode(), True, 400),
    ("POST", CHAT, json.dumps(chat(chat_template="{{ 1 }}")).encode(), True, 400),
    ("POST", CHAT, json.dumps(chat(chat_template_kwargs={"messages": []})).encode(), True, 400),
    ("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "raise"}]}).encode(), True, 500),
    ("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "refuse"}]}).encode(), True, 400),
    ("POST", "/detokenize", json.dumps({"tokens": [256]}).encode(), True, 400),
    ("POST", "/v1/requests/none/cancel", b"", True, 404),
    ("POST", CHAT, json.dumps(chat()).encode(), True, 200),
]


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["plain", "-O"])
def test_hostile_requests_are_refused_with_and_without_assertions(flags: tuple[str, ...]) -> None:
    """The same statuses, and a server that ends with its books in order."""
    keys = {"api_key": ("k",), "admin_api_key": ("a",)}
    with (
        running(*flags, max_body_size=1_000_000, **keys) as server,
        httpx.Client(trust_env=False, timeout=REAL_LIMIT_S) as client,
    ):
        for method, path, body, has_key, status in HOSTILE:
            headers = {"authorization": "Bearer k"} if has_key else {}
            response = client.request(method, httpx.URL(server.url + path), content=body, headers=headers)
            assert response.status_code == status, (method, path, body[:200], response.text)


def test_only_the_servers_port_listens() -> None:
    """No other socket of the process takes connections: no side channel for workers, none for debugging."""
    with running() as server:
        inodes = set()
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            with open(f"/proc/{server.process.pid}/net/{kind}") as table:
                rows = [line.split() for line in table.readlines()[1:]]
            inodes |= {(kind, row[9], int(row[1].rpartition(":")[2], 16)) for row in rows if row[3] in ("0A", "07")}
        own = _sockets(server.process.pid)
        listening = {(kind, port) for kind, inode, port in inodes if inode in own}
        assert listening == {("tcp", server.port)}


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
