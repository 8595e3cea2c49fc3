"""The log: its lines, its periodic line, and what never stands in it."""

import json
import logging
import sys

import attrs
import pytest
import trio
import trio.testing

from triolet.api.config import ServerConfig
from triolet.api.log import JsonLine, OneLine, Throughput, describe, log_throughput
from triolet.engine.config import EngineConfig
from triolet.engine.stats import CacheFacts

from .fake_engine import FakeEngine
from .rig import chat, serving


def test_the_throughput_line_is_the_difference_to_the_last_one() -> None:
    """Tokens a second, requests, usage and the hit rate of the interval; cached prompt tokens were not computed."""
    engine = FakeEngine()
    first = engine.stats()
    throughput = Throughput(first, now_s=100.0)
    second = attrs.evolve(
        first,
        running=3,
        prompt_tokens=first.prompt_tokens + 150,
        cached_prompt_tokens=first.cached_prompt_tokens + 50,
        generation_tokens=first.generation_tokens + 25,
        prefix_queries=first.prefix_queries + 200,
        prefix_hits=first.prefix_hits + 50,
    )
    on_gpu = attrs.evolve(second, cache=CacheFacts(device="cuda"))
    assert "GPU KV cache usage: 25.0%" in str(Throughput(first, now_s=100.0).line(on_gpu, now_s=110.0))
    assert throughput.line(second, now_s=110.0) == (
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 2.5 tokens/s, Running: 3 reqs, "
        "Waiting: 3 reqs, Preemptions: 2, CPU KV cache usage: 25.0%, Prefix cache hit rate: 25.0%"
    )


async def test_the_throughput_line_comes_every_ten_seconds_and_not_while_idle(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Silence where nothing runs, waits or has moved."""
    caplog.set_level(logging.INFO)
    stats = attrs.evolve(FakeEngine().stats(), waiting=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log_throughput, lambda: stats)
        for running, expected in ((0, 0), (1, 1), (1, 2), (0, 2)):
            stats = attrs.evolve(stats, running=running)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(10)
            await trio.testing.wait_all_tasks_blocked()
            assert len(caplog.records) == expected
        nursery.cancel_scope.cancel()


def test_an_event_is_one_line() -> None:
    """Line ends in a message are escaped; a traceback of our own error follows."""
    record = logging.LogRecord("triolet.api.x", logging.INFO, "x.py", 1, "a\nb\r%s", ("c\nd",), None)
    line = OneLine().format(record)
    assert "\n" not in line
    assert line.endswith("INFO triolet.api.x: a\\nb\\rc\\nd")
    try:
        raise ValueError("boom")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert OneLine().format(record).endswith("ValueError: boom")


def test_the_configuration_is_told_without_its_keys() -> None:
    """The flags that are not the defaults; a key is no such thing."""
    assert describe(EngineConfig(), ServerConfig()) == "as by default"
    server = ServerConfig(port=0, api_key=("the-key",))
    assert describe(EngineConfig(max_num_seqs=8), server) == "--max-num-seqs 8 --port 0"


def test_an_event_is_one_json_object() -> None:
    """With --log-format json: time, level, logger, message; a traceback is a field, and no line ends break out."""
    record = logging.LogRecord("triolet.api.x", logging.WARNING, "x.py", 1, "a\nb %s", ("c",), None)
    record.created = 1_700_000_000.25
    plain = JsonLine().format(record)
    assert json.loads(plain) == {
        "time": 1_700_000_000.25,
        "level": "warning",
        "logger": "triolet.api.x",
        "message": "a\nb c",
    }
    try:
        raise ValueError("boom")
    except ValueError:
        record.exc_info = sys.exc_info()
    told = JsonLine().format(record)
    assert "\n" not in told
    assert json.loads(told)["exception"].endswith("ValueError: boom")


async def test_prompts_answers_and_keys_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the default level, for good and bad requests and keys."""
    caplog.set_level(logging.INFO)
    key = {"authorization": "Bearer the-key"}
    async with serving(FakeEngine(pieces=["the-answer"]), api_key=("the-key",)) as rig:
        body = {"messages": [{"role": "user", "content": "the-prompt"}]}
        assert (await rig.post("/v1/chat/completions", body, headers=key)).status_code == 200
        assert (await rig.post("/v1/chat/completions", {**body, "top_p": 9}, headers=key)).status_code == 400
        await rig.post("/v1/chat/completions", body, headers={"authorization": "Bearer the-wrong-key"})
        await rig.post("/tokenize", {"prompt": "the-prompt"}, headers=key)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert text
    assert "the-" not in text


async def test_debug_has_a_line_for_each_request(caplog: pytest.LogCaptureFixture) -> None:
    """By its id, which a client may choose, and its outcome."""
    caplog.set_level(logging.DEBUG, "triolet.api.generate")
    async with serving() as rig:
        response = await rig.post("/v1/chat/completions", chat(), headers={"x-request-id": "mine-1"})
        assert response.headers["x-request-id"] == "mine-1"
        response = await rig.post("/v1/chat/completions", chat(top_p=7), headers={"x-request-id": "not okay"})
        assert response.headers["x-request-id"] != "not okay"
    first, second = (record.getMessage() for record in caplog.records if record.name == "triolet.api.generate")
    assert first.startswith("request mine-1 done after ")
    assert "invalid_request_error" in second
