"""`triolet chat`, `complete` and `run-batch` on the built-in model, loaded by the command: what a server would say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from ..limits import REAL_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from triolet.api.cli import main; main(sys.argv[1:])"
ENGINE = ("--kv-cache-memory", "200M")


def command(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], input=given, capture_output=True, text=True, check=False, cwd=ROOT
    )


def post(base_url: str, route: str, **body: Any) -> Any:
    answer = httpx.post(base_url + route, json=body, timeout=REAL_LIMIT_S, trust_env=False)
    assert answer.status_code == 200
    return answer.json()


def test_a_conversation_with_a_model_that_is_loaded_here(base_url: str) -> None:
    """The same text as from a server, token for token, and the second turn knows the first."""
    first = {"role": "user", "content": "What is the capital of France?"}
    one = post(base_url, "/chat/completions", messages=[first], temperature=0, max_tokens=12)["choices"][0]["message"]
    told = {"role": "user", "content": "Say it again."}
    messages = [first, {"role": "assistant", "content": one["content"]}, told]
    two = post(base_url, "/chat/completions", messages=messages, temperature=0, max_tokens=12)["choices"][0]["message"]
    asked = ("chat", "--extra-body", '{"temperature": 0}', "--max-tokens", "12", "--stats")
    given = f"{first['content']}\n{told['content']}\n"
    for where in (ENGINE, ("--url", base_url)):
        done = command(*asked, *where, given=given)
        assert (done.returncode, done.stdout) == (0, f"{one['content']}\n{two['content']}\n")
        assert done.stderr.count(" tokens, ") == 2


def test_a_batch_of_a_model_that_is_loaded_here(base_url: str, tmp_path: Path) -> None:
    """Its rows equal what the server answers, tokens, logprobs and errors."""
    asked = {
        "text": ("/completions", {"prompt": ["One, two,", "A, B,"], "max_tokens": 6, "logprobs": 2, "echo": True}),
        "chat": ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}),
        "more": ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "n": 2}),
    }
    lines = [
        {"custom_id": name, "method": "POST", "url": f"/v1{route}", "body": {**body, "temperature": 0}}
        for name, (route, body) in asked.items()
    ]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    done = command("run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), *ENGINE)
    assert done.returncode == 0, done.stderr
    rows = {row["custom_id"]: row for row in map(json.loads, (tmp_path / "out").read_text().splitlines())}
    for name, (route, body) in asked.items():
        direct = post(base_url, route, **body, temperature=0)
        assert rows[name]["response"]["body"]["choices"] == direct["choices"]
        assert rows[name]["response"]["body"]["model"] == direct["model"]


def test_a_text_goes_on(base_url: str) -> None:
    """A pipe is one text, its line ends included."""
    text = "Monday,\nTuesday,\n"
    direct = post(base_url, "/completions", prompt=text, temperature=0, max_tokens=5)["choices"][0]["text"]
    extra = ("--extra-body", '{"temperature": 0}', "--max-tokens", "5")
    done = command("complete", "--url", base_url, *extra, given=text)
    assert (done.returncode, done.stdout) == (0, direct + "\n")
