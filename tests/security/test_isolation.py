"""What one client can learn of another: nothing from the prefix cache where they are apart, nothing from the log."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from tests.api.rig import chat, serving
from triolet.api.config import ServerConfig
from triolet.api.errors import as_http
from triolet.api.generating import GENERATING
from triolet.engine.core.errors import InvalidRequest

from . import server

PROMPT = "the same words for everybody, and more than a few blocks of them. " * 4
Ask = Callable[..., Any]


@asynccontextmanager
async def asking(**config: Any) -> AsyncIterator[Ask]:
    """A server over the real scheduler; `ask(key=…, fields…)` gives the number of cached tokens of an answer."""
    async with trio.open_nursery() as nursery:
        settings = ServerConfig(**{"port": 0, "shutdown_timeout": 0.0, **config})
        run = await nursery.start(partial(server.run, settings, signals=False))
        url = f"http://127.0.0.1:{run.server.port}"
        client: AbstractAsyncContextManager[httpx.AsyncClient] = httpx.AsyncClient(
            base_url=url, timeout=None, trust_env=False
        )
        async with client as asks:

            async def ask(*, key: str | None = None, **fields: Any) -> int:
                headers = {} if key is None else {"authorization": f"Bearer {key}"}
                body = json.dumps({"prompt": PROMPT, "max_tokens": 1, **fields})
                answer = await asks.post("/v1/completions", content=body, headers=headers)
                assert answer.status_code == 200, answer.text
                return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

            yield ask
        run.stop.set()


async def test_two_salts_never_share_a_block() -> None:
    """The counters tell: a prefix is a hit with its own salt, and with no other and none."""
    async with asking() as ask:
        assert await ask(cache_salt="a") == 0
        assert await ask(cache_salt="a") > 0
        for other in ({"cache_salt": "b"}, {}, {"cache_salt": "A"}, {"cache_salt": "a "}):
            assert await ask(**other) == 0
        assert await ask() > 0


async def test_without_isolation_keys_share_their_prefixes() -> None:
    """The default: what one key has computed is a hit for another."""
    async with asking(api_key=("one", "two")) as ask:
        assert await ask(key="one") == 0
        assert await ask(key="two") > 0


async def test_with_isolation_keys_never_share_a_block() -> None:
    """--cache-isolation: a hit for the same key alone; a salt divides further, and joins nobody."""
    async with asking(api_key=("one", "two"), cache_isolation=True) as ask:
        assert await ask(key="one") == 0
        assert await ask(key="one") > 0
        assert await ask(key="two") == 0
        assert await ask(key="two", cache_salt="s") == 0
        assert await ask(key="one", cache_salt="s") == 0
        assert await ask(key="two", cache_salt="s") > 0


SECRET_WORDS = "the-secret-prompt"


async def test_prompts_keys_and_answers_are_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """At the default level: good requests, refused ones, ones without a key, broken ones, and the server's start."""
    caplog.set_level(logging.INFO)
    keys = {"api_key": ("the-secret-key",), "admin_api_key": ("the-secret-admin-key",)}
    async with serving(**keys, headers={"authorization": "Bearer the-secret-key"}) as rig:
        said = [{"role": "user", "content": SECRET_WORDS}]
        for body in (
            {"messages": said},
            {"messages": said, "stream": True},
            {"messages": said, "n": -1},
            {"messages": said, "user": SECRET_WORDS, SECRET_WORDS: 1},
            {"messages": [{"role": SECRET_WORDS}]},
            {"prompt": [SECRET_WORDS, 5]},
            {"messages": said, "max_tokens": 5, "stream": True},
            {"messages": said, "max_tokens": 5, "system": SECRET_WORDS, "tools": [{"name": SECRET_WORDS}]},
            {"input": SECRET_WORDS, "instructions": SECRET_WORDS, "background": True},
            {"input": [{"type": SECRET_WORDS}], "previous_response_id": SECRET_WORDS},
            f'{{"prompt": "{SECRET_WORDS}'.encode(),
        ):
            for path in (*GENERATING, "/v1/messages/count_tokens", "/tokenize", f"/{SECRET_WORDS}"):
                await rig.post(path, body)
                await rig.post(path, body, headers={"authorization": f"Bearer {SECRET_WORDS}"})
    ours = [record for record in caplog.records if not record.name.startswith("http")]  # the client has a log too
    text = "\n".join(record.getMessage() + str(record.exc_info) for record in ours)
    assert "secret" not in text
    assert "secret" not in repr(ServerConfig(**keys))


async def test_a_tokenizer_that_breaks_does_not_log_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the error's kind, and not its text, which may quote the prompt."""
    caplog.set_level(logging.INFO)
    settings = ServerConfig(port=0, shutdown_timeout=0.0)
    async with trio.open_nursery() as nursery:
        run = await nursery.start(partial(server.run, settings, signals=False))
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{run.server.port}", trust_env=False, timeout=None
        ) as asks:
            messages = [{"role": "user", "content": "raise"}, {"role": "user", "content": SECRET_WORDS}]
            answer = await asks.post("/v1/chat/completions", content=json.dumps(chat(messages=messages)))
            assert answer.status_code == 500
        run.stop.set()
    assert SECRET_WORDS not in caplog.text
    assert "a prompt could not be tokenized: ZeroDivisionError" in caplog.text
    assert "inside the template" not in caplog.text


def test_an_error_is_answered_without_its_cause() -> None:
    """What it was raised from stays here."""
    error = InvalidRequest("said")
    error.__cause__ = OSError("secret cause")
    assert b"secret" not in as_http(error).body
