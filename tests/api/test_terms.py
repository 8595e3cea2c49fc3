"""What a request asks for beside its answer: several answers, its name, its time, its place, what it replaces."""

from typing import Any

import pytest
import trio

from triolet.api.config import ServerConfig
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.events import FinishReason

from .fake_engine import FakeEngine
from .rig import chat, error_of, events_of, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("X-Request-Timeout", "0", "X-Request-Timeout must be a number of seconds above 0, not 0.0."),
        ("X-Request-Timeout", "nan", "X-Request-Timeout must be a number of seconds above 0, not 'nan'."),
        ("X-Request-Timeout", "inf", "X-Request-Timeout must be a number of seconds above 0, not 'inf'."),
        ("X-Request-Timeout", "1e400", "X-Request-Timeout must be a number of seconds above 0, not inf."),
        ("X-Request-Timeout", "1_0", "X-Request-Timeout must be a number of seconds above 0, not '1_0'."),
        ("X-Request-Timeout", "soon", "X-Request-Timeout must be a number of seconds above 0, not 'soon'."),
        ("X-Supersede-Key", "", "X-Supersede-Key must be 1 to 128 printable ASCII characters."),
        ("X-Supersede-Key", "x" * 129, "X-Supersede-Key must be 1 to 128 printable ASCII characters."),
        ("X-Fairness-Key", "a\tb", "X-Fairness-Key must be 1 to 128 printable ASCII characters."),
    ],
)
async def test_a_header_out_of_range_is_named(name: str, value: str, message: str) -> None:
    """400 with the header as the param, before the engine hears of the request."""
    async with serving() as rig:
        response = await rig.post(CHAT, chat(), headers={name: value})
        assert response.status_code == 400
        assert not rig.engine.seen
    error = error_of(response)
    assert (error["param"], error["message"]) == (name, message)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"use_beam_search": True, "stream": True}, "use_beam_search", "use_beam_search cannot be streamed"),
        ({"prompt": ["a"] * 9, "n": 128}, "n", "at most 1024 answers; 9 prompts with n 128 have more."),
    ],
)
async def test_fields_that_do_not_go_together_are_named(fields: Any, param: str, message: str) -> None:
    """Streamed beams, and more answers than one request may have."""
    async with serving() as rig:
        response = await rig.post(COMPLETIONS, {"prompt": "a", **fields})
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]


async def test_the_engine_gets_the_terms_of_a_request(mock_clock: trio.testing.MockClock) -> None:
    """Priority, salt, fairness and deadline; of two timeouts the shorter counts."""
    async with serving() as rig:
        body = chat(priority=-3, cache_salt="mine", timeout=9, n=2, use_beam_search=True, length_penalty=0.5)
        await rig.post(CHAT, body, headers={"X-Request-Timeout": "7.5", "X-Fairness-Key": "team a"})
        await rig.post(CHAT, chat())
    seen, plain = rig.engine.seen
    assert seen.options.priority == -3
    assert seen.options.extra_keys == ("mine",)
    assert seen.options.fairness_key == "/team a"
    assert seen.options.deadline == trio.current_time() + 7.5
    assert (seen.params.n, seen.params.use_beam_search, seen.params.length_penalty) == (2, True, 0.5)
    assert (plain.options.deadline, plain.options.extra_keys, plain.options.priority) == (None, (), 0)


async def test_requests_of_one_key_have_one_share() -> None:
    """Without a fairness key of its own a request counts to its API key; with one, to both together."""
    async with serving(api_key=("a", "b")) as rig:
        for key in ("a", "a", "b"):
            await rig.post(CHAT, chat(), headers={"Authorization": f"Bearer {key}"})
        await rig.post(CHAT, chat(), headers={"Authorization": "Bearer a", "X-Fairness-Key": "x"})
    first, second, third, fourth = [seen.options.fairness_key for seen in rig.engine.seen]
    assert first == second
    assert len({first, third, fourth}) == 3
    assert fourth == f"{first}/x"


async def test_the_servers_default_timeout(mock_clock: trio.testing.MockClock) -> None:
    """--default-timeout stands in for a request's own, and no longer one is shortened by it."""
    async with serving(default_timeout=5.0) as rig:
        await rig.post(CHAT, chat())
        await rig.post(CHAT, chat(timeout=60))
    deadlines = [seen.options.deadline for seen in rig.engine.seen]
    assert deadlines == [trio.current_time() + 5, trio.current_time() + 60]


@pytest.mark.parametrize("field", ["default_timeout", "max_queue_time"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_default_that_is_no_time_refuses_to_start(field: str, value: float) -> None:
    """The message names the flag."""
    with pytest.raises(ConfigurationError, match=f"--{field.replace('_', '-')} must be a number of seconds above 0"):
        ServerConfig(**{field: value})


@pytest.mark.parametrize(
    ("headers", "fields", "name"),
    [
        ({"X-Request-Id": "mine-1"}, {}, "mine-1"),
        ({}, {"request_id": "mine:2"}, "mine:2"),
        ({"X-Request-Id": "header"}, {"request_id": "body"}, "header"),
        ({"X-Request-Id": "no spaces allowed"}, {"request_id": "body"}, "body"),
    ],
)
async def test_a_request_has_the_name_its_client_gave_it(headers: Any, fields: Any, name: str) -> None:
    """The header counts, then the body; the answer carries it, and an error the header's."""
    async with serving() as rig:
        response = await rig.post(CHAT, chat(**fields), headers=headers)
        refused = await rig.post(CHAT, chat(**fields, model="nothing"), headers={"X-Request-Id": "mine-2"})
    assert response.headers["x-request-id"] == name
    assert refused.headers["x-request-id"] == "mine-2"


@pytest.mark.parametrize(
    ("strict", "reason", "told", "timed_out"),
    [
        (False, FinishReason.TIMEOUT, "timeout", True),
        (True, FinishReason.TIMEOUT, "length", True),
        (False, FinishReason.ABORT, "abort", None),
        (True, FinishReason.ABORT, "length", None),
        (True, FinishReason.STOP, "stop", None),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_how_an_end_is_told(
    path: str, strict: bool, reason: FinishReason, told: str, timed_out: bool | None
) -> None:
    """`timed_out` marks what a deadline ended; strict clients see OpenAI's finish reasons alone."""
    engine = FakeEngine()
    engine.finish_reason = reason
    body = chat() if path == CHAT else {"prompt": "a"}
    async with serving(engine, strict_finish_reasons=strict) as rig:
        whole = (await rig.post(path, body)).json()["choices"][0]
        last = events_of((await rig.post(path, {**body, "stream": True})).text)[-1]["choices"][0]
    for choice in (whole, last):
        assert (choice["finish_reason"], choice.get("timed_out")) == (told, timed_out)
