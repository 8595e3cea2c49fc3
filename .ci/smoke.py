"""Start `triolet serve` as a user would, ask one chat, break one stream off, see its blocks come back, stop it again.

The page of its metrics goes into the file that is named. Uses the standard library alone: the environment it runs in
has just what `pip install .` brings.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

LIMIT_S = 300
"""Against hanging alone: the machine may be slow."""

PROMPT = [{"role": "user", "content": "What is the capital of France?"}]


def post(port: int, body: dict[str, object]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({"messages": PROMPT, **body}), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.status == 200, (response.status, response.read())
    return response


def metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def metric(port: int, name: str) -> float:
    page = metrics(port)
    (value,) = re.findall(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", page, re.MULTILINE)
    return float(value)


def page(port: int) -> None:
    """The wheel has brought the page, its modules and its charts."""
    for path, start in (
        ("/ui", b"<!doctype html>"),
        ("/ui/js/main.js", b"//"),
        ("/ui/css/base.css", b"/*"),
        ("/ui/vendor/uplot/uPlot.esm.js", b"/**"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, (path, response.status)
        assert body.startswith(start), (path, body[:40])
    print("the page is there")


def exercise(port: int) -> None:
    page(port)
    answer = json.load(post(port, {"temperature": 0, "max_tokens": 32}))
    text = answer["choices"][0]["message"]["content"]
    assert "Paris" in text, answer
    print("asked:", text)
    stream = post(port, {"stream": True, "max_tokens": 4000, "ignore_eos": True})
    first = stream.readline()
    assert first.startswith(b"data: "), first
    stream.close()
    # Each look at the metrics is a round trip through the server's loop: a bounded number of them, no sleep.
    for _ in range(1000):
        if metric(port, "vllm:num_requests_running") == 0:
            break
    else:
        raise AssertionError("the broken-off stream still runs")
    assert metric(port, "vllm:kv_cache_usage_perc") == 0
    print("broke a stream off: nothing runs, no block is held")


def main() -> None:
    server = subprocess.Popen(
        ["triolet", "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watchdog = threading.Timer(4 * LIMIT_S, server.kill)
    watchdog.start()
    assert server.stdout is not None
    try:
        for line in server.stdout:
            print("|", line, end="")
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            sys.exit("the server ended before it listened")
        rest = threading.Thread(target=lambda: [print("|", line, end="") for line in server.stdout or ()])
        rest.start()
        port = int(found.group(1))
        exercise(port)
        Path(sys.argv[1]).write_text(metrics(port))
        server.terminate()
        status = server.wait(timeout=LIMIT_S)
        rest.join()
        assert status == 0, f"exit status {status} after SIGTERM"
        print("stopped: exit status 0")
    finally:
        watchdog.cancel()
        if server.poll() is None:
            server.kill()


if __name__ == "__main__":
    main()
