"""The real hub client against a small hub on this machine: what is fetched, and what is said when it cannot be."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest

from tests.model.tiny import write_folder

COMMIT = "0" * 40
ROOT = Path(__file__).parents[2]
# The client reads its settings from the environment when it is imported, so it gets a process of its own.
RESOLVE = """
import sys
from triolet.engine.core.errors import ModelLoadError
from triolet.model.source import resolve_source
heard = []
try:
    source = resolve_source(sys.argv[1], lambda *report: heard.append(report))
except ModelLoadError as error:
    sys.exit(error.message)
print(source.name, heard[-1] if heard else None, *sorted(path.name for path in source.path.iterdir()), sep="|")
"""


@attrs.frozen
class Hub:
    """A hub that holds one model, `own/tiny`."""

    url: str
    home: Path
    asked: list[str]

    def resolve(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`resolve_source(name)` in a new process."""
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(self.home), **environment}
        command = [sys.executable, "-c", RESOLVE, name]
        environ = {**os.environ, **settings}
        return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Serves a tiny model with two files beside it that nobody should want."""
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "modeling_evil.py").write_text("raise SystemExit")
    (tmp_path / "m" / "pytorch_model.bin").write_text("pickled")
    files = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            if path.startswith("/api/models/own/tiny/tree"):
                rows = [{"type": "file", "path": n, "size": len(d), "oid": sha1(d)} for n, d in files.items()]
                self.answer(json.dumps(rows).encode())
            elif path.startswith("/api/models/own/tiny"):
                names = [{"rfilename": name} for name in files]
                self.answer(json.dumps({"id": "own/tiny", "sha": COMMIT, "siblings": names}).encode())
            elif path.startswith("/own/tiny/resolve/"):
                data = files[path.rpartition("/")[2]]
                self.answer(data, ETag=f'"{sha1(data)}"', **{"X-Repo-Commit": COMMIT})
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_HEAD = do_GET

        def answer(self, body: bytes, **headers: str) -> None:
            self.send_response(200)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Hub(f"http://127.0.0.1:{server.server_port}", tmp_path / "home", asked)
        server.shutdown()
        thread.join()


def sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def test_data_is_fetched_and_neither_code_nor_pickles(hub: Hub) -> None:
    """Configuration, tokenizer and safetensors arrive, and the bytes are counted; then it works without the hub."""
    done = hub.resolve("own/tiny")
    assert done.returncode == 0, done.stderr
    name, heard, *files = done.stdout.strip().split("|")
    assert name == "own/tiny"
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(files)
    assert not [path for path in hub.asked if path.endswith((".py", ".bin"))]
    assert heard.startswith("('Fetching own/tiny', ")
    assert len(set(heard.strip("()").split(", ")[1:])) == 1  # all of the bytes
    offline = hub.resolve("own/tiny", HF_HUB_OFFLINE="1")
    assert offline.stdout.strip().split("|")[2:] == files


def test_a_model_that_the_hub_does_not_have(hub: Hub) -> None:
    """One line, no traceback."""
    said = hub.resolve("own/none").stderr.strip()
    assert said.startswith("The hub model own/none cannot be fetched: there is no such model there")
    assert "\n" not in said


def test_a_hub_that_cannot_be_reached(hub: Hub) -> None:
    """Nobody listens at that port; the message says how to go on."""
    said = hub.resolve("own/tiny", HF_ENDPOINT="http://127.0.0.1:9").stderr.strip()
    assert "own/tiny cannot be fetched: the hub cannot be reached, and the model is not in its local cache." in said
    assert said.endswith("A local model is named by its folder or its .gguf file.")
