"""`triolet bench serve` and `cases` against a fake server over real sockets: what is sent, counted and said."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.bench.cases import run_cases
from triolet.api.bench.client import open_client, resolve
from triolet.api.bench.load import Pace, run_load
from triolet.api.bench.options import LengthOptions, LoadOptions, OutputOptions, ReportOptions, ServerOptions
from triolet.api.bench.prompts import Ask
from triolet.api.bench.serving import serve
from triolet.api.bench.target import ServerUnusable, Target, probe
from triolet.api.cli import main
from triolet.engine.core.errors import ConfigurationError

from .fake_openai import Fake, complete, event, fake_openai, streamed, text_events, whole


async def bench(*fakes: Fake, lengths: LengthOptions | None = None, goodput: tuple[str, ...] = (), **load: Any) -> int:
    """The exit status of a small load."""
    endpoint = load.pop("endpoint", "completions")
    report = ReportOptions(
        goodput=goodput, **{name: load.pop(name) for name in ("output", "json", "plot") if name in load}
    )
    servers = ServerOptions(
        base_url=tuple(fake.url for fake in fakes), endpoint=endpoint, api_key=load.pop("key", None)
    )
    options = LoadOptions(**{"num_requests": 4, "input_len": 5, "output_len": 3, **load})
    return await serve(servers, lengths or LengthOptions(), options, report)


async def test_a_load_is_counted_and_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every request once, greedy, to its full length, by token ids; a table on stdout, the figures in a file."""
    async with fake_openai() as fake:
        assert await bench(fake, goodput=("ttft:60000",), output=tmp_path / "out.json", key="k1") == 0
    assert len(fake.prompts) == 4
    assert {len(prompt) for prompt in fake.prompts} == {5}
    assert all(b"\r\nauthorization: Bearer k1\r\n" in head + b"\r\n" for head in fake.heads)
    sent = {key: value for key, value in fake.bodies[-1].items() if key != "prompt"}
    assert sent == {
        "model": "fake-model",
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    out = capsys.readouterr().out
    assert "4 completed, 0 failed" in out
    assert "12 prompt, 12 output" in out
    assert "goodput" in out
    figures = json.loads((tmp_path / "out.json").read_text())
    summary = figures["servers"]["A"]["summary"]
    assert (summary["num_completed"], summary["num_output_tokens"]) == (4, 12)
    assert summary["goodput_requests_per_s"] == summary["requests_per_s"]
    assert figures["settings"]["concurrency"] == 8
    assert figures["ratios"] == {}


async def test_two_servers_take_turns_with_the_same_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    """Three rounds, each with prompts of its own; the ratios are printed."""
    async with fake_openai() as first, fake_openai() as second:
        assert await bench(first, second) == 0
    assert len(first.prompts) == 12
    assert sorted(first.prompts) == sorted(second.prompts)
    assert len(set(map(tuple, first.prompts))) == 12
    out = capsys.readouterr().out
    assert "A / B" in out
    assert "output tok/s" in out


async def test_a_server_without_token_ids_gets_text() -> None:
    """It says so by refusing the first request; both servers then get the same text."""

    def picky(body: dict[str, Any]) -> bytes:
        if isinstance(body["prompt"], str):
            return complete(body)
        return whole(400, {"error": {"message": "prompt must be a string"}})

    async with fake_openai(picky) as first, fake_openai() as second:
        assert await bench(first, second, rounds=1) == 0
    assert sorted(first.prompts) == sorted(second.prompts)
    assert {len(prompt.split()) for prompt in first.prompts} == {5}


async def test_text_prompts_can_be_asked_for() -> None:
    """Also where the server takes token ids."""
    async with fake_openai() as fake:
        assert await bench(fake, lengths=LengthOptions(text_prompts=True)) == 0
    assert all(isinstance(prompt, str) for prompt in fake.prompts)


async def test_a_chat_conversation_carries_what_was_said_before() -> None:
    """Each turn has the questions and the server's answers in front of it; two conversations, three turns each."""
    async with fake_openai() as fake:
        assert await bench(fake, endpoint="chat", dataset="conversation", turns=3, num_requests=2, concurrency=1) == 0
    roles = [[message["role"] for message in messages] for messages in fake.prompts]
    turns = [["user"], ["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"]]
    assert roles == turns + turns
    assert fake.prompts[2][:3] == fake.prompts[1]
    assert fake.prompts[1][1]["content"] == " word" * 3


async def test_a_completion_conversation_is_one_growing_text() -> None:
    """So that a prefix cache sees it as such."""
    async with fake_openai() as fake:
        assert await bench(fake, dataset="conversation", turns=2, num_requests=1) == 0
    first, second = fake.prompts
    assert second.startswith(f"{first}\n word word word\n")


async def test_concurrency_bounds_the_requests_that_are_open() -> None:
    """As many as are asked for, no more, until all are done."""
    hold = trio.Event()
    async with fake_openai(hold=hold) as fake, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench(fake, num_requests=9, concurrency=3))
        while fake.open < 3:
            await trio.testing.wait_all_tasks_blocked(0.001)
        hold.set()
    assert fake.most_open == 3
    assert len(fake.prompts) == 9


async def test_a_rate_does_not_wait_for_answers() -> None:
    """Without a --concurrency all requests may be open at a time."""
    hold = trio.Event()
    async with fake_openai(hold=hold) as fake, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench(fake, num_requests=6, request_rate=5000.0))
        while fake.open < 6:
            await trio.testing.wait_all_tasks_blocked(0.001)
        hold.set()
    assert len(fake.prompts) == 6


async def test_errors_are_counted_shown_and_change_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """The other requests count as ever; a rate never counts a failed one."""
    numbers = iter(range(100))

    def flaky(body: dict[str, Any]) -> bytes:
        if body["max_tokens"] == 2 or next(numbers) % 2:
            return complete(body)
        return whole(503, {"error": {"message": "no room [now]"}})

    async with fake_openai(flaky) as fake:
        assert await bench(fake) == 1
    out = capsys.readouterr().out
    assert "2 completed, 2 failed" in out
    assert "failed 2 ×: status 503: no room [now]" in out


async def test_missing_usage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens are then counted by events, the prompt's by what was sent."""
    async with fake_openai(lambda body: streamed(text_events(body["max_tokens"], usage=False))) as fake:
        assert await bench(fake) == 0
    assert "20 prompt, 12 output (4 counted by events)" in capsys.readouterr().out


async def test_a_conversation_ends_where_a_request_of_it_fails() -> None:
    """There is no answer to go on from."""
    async with fake_openai(lambda body: complete(body) if body["max_tokens"] == 2 else whole(500, {})) as fake:
        assert await bench(fake, dataset="conversation", turns=3, num_requests=1) == 1
    assert len(fake.prompts) == 1


async def target_of(fake: Fake) -> Target:
    return Target(name="A", address=await resolve(fake.url), model="m")


async def test_a_server_that_hangs_up_or_hangs_is_an_error_of_its_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Refused, reset, cut, or silent for longer than --timeout."""
    autojump_clock.autojump_threshold = 0.2  # what is on its way through a socket is given a moment to arrive
    sessions = [(Ask(content="hello", max_tokens=3),)]

    async def error_of(answer: bytes | None) -> str | None:
        async with fake_openai(lambda body: answer) as fake:
            (outcome,) = await run_load(await target_of(fake), sessions, Pace(timeout_s=7))
            return outcome.error

    assert await error_of(None) == "no whole answer within 7 s"
    assert await error_of(b"") == "the connection was closed without an answer"
    cut = streamed(text_events(3))[:200]
    assert await error_of(cut) == "the stream was cut: it has neither a finish reason nor [DONE]"
    async with fake_openai() as fake:
        gone = await target_of(fake)
    (outcome,) = await run_load(gone, sessions, Pace())
    assert outcome.error == "the connection was refused"


async def test_a_cancelled_request_closes_its_connection() -> None:
    """And the client goes on."""
    async with fake_openai(lambda body: None) as fake, open_client() as client:
        target = await target_of(fake)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: target.send(client, Ask(content="a", max_tokens=9), timeout_s=60))
                while not fake.open:
                    await trio.testing.wait_all_tasks_blocked(0.001)
                scope.cancel()
        while fake.open:
            await trio.testing.wait_all_tasks_blocked(0.001)


UNUSABLE = [
    ({"models": whole(200, b"nothing")}, "{} lists no model; name one with --model."),
    (
        {"models": whole(401, {"error": {"message": "who are you?"}})},
        "{} does not say which models it has (status 401: who are you?); name one with --model.",
    ),
    ({"models": b"rubbish\r\n\r\n"}, "{} cannot be measured: the answer is not HTTP/1.1: b'rubbish\\r\\n'."),
    (
        {"answer": lambda body: whole(404, {"error": {"message": "no such route"}})},
        "{} cannot be measured: status 404: no such route.",
    ),
    ({"answer": lambda body: streamed([event({"error": "broken"})])}, "{} cannot be measured: an error within the"),
]


@pytest.mark.parametrize(("fields", "message"), UNUSABLE)
async def test_a_server_that_cannot_be_used_is_refused_before_the_load(fields: dict[str, Any], message: str) -> None:
    """In its own words; with --model the list of models isn't needed."""
    async with fake_openai(**fields) as fake:
        with pytest.raises(ServerUnusable) as caught:
            await probe(fake.url, name="A")
        assert caught.value.message.startswith(message.format(fake.url))
        if "models" in fields:
            assert (await probe(fake.url, name="A", model="m")).model == "m"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "--base-url must look like http://127.0.0.1:8000/v1, not 'localhost:8000'."),
        ("ftp://a/", "--base-url must look like http://127.0.0.1:8000/v1, not 'ftp://a/'."),
        ("http://a:b/", "--base-url http://a:b/ is malformed: Port could not be cast to integer value as 'b'."),
        ("http://127.0.0.1/?x=1", "--base-url must look like http://127.0.0.1:8000/v1, not 'http://127.0.0.1/?x=1'."),
    ],
)
async def test_a_malformed_url_is_refused(url: str, message: str) -> None:
    """By the flag's name."""
    with pytest.raises(ConfigurationError) as caught:
        await resolve(url)
    assert caught.value.message == message


async def test_a_url_may_have_its_v1_and_a_path() -> None:
    """They end up in the request's path once."""
    for url, path in (("http://127.0.0.1:1/v1/", "/v1/models"), ("http://127.0.0.1:1/a/b", "/a/b/v1/models")):
        request = (await resolve(url)).request("GET", "/v1/models")
        assert request.startswith(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:1\r\n".encode())


async def test_extra_fields_go_into_every_body() -> None:
    """Over those that are sent anyway."""
    async with fake_openai() as fake:
        servers = ServerOptions(base_url=(fake.url,), extra_body='{"temperature": 1, "cache_prompt": false}')
        await serve(servers, LengthOptions(), LoadOptions(num_requests=1, output_len=3), ReportOptions())
    assert {(body["temperature"], body["cache_prompt"]) for body in fake.bodies} == {(1, False)}


async def test_interference_measures_the_stream_and_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """A long prompt alone, then another beside a stream; the stream is broken off afterwards."""

    def patient(body: dict[str, Any]) -> list[bytes]:
        return [streamed([], chunked=False), *text_events(body["max_tokens"])]

    async with fake_openai(patient) as fake:
        assert await bench(fake, interference=40, rounds=1) == 0
    lengths = Counter(len(body["prompt"]) for body in fake.bodies if body["max_tokens"] != 2)
    assert lengths == {40: 2, 5: 1}
    out = capsys.readouterr().out
    assert "largest gap of the stream, ms" in out
    assert "speed of the prompt, beside / alone" in out


async def test_interference_needs_a_stream_that_lasts() -> None:
    """A server that answers too shortly cannot be measured so."""

    def brief(body: dict[str, Any]) -> bytes:
        return streamed(text_events(2))

    async with fake_openai(brief) as fake:
        with pytest.raises(ServerUnusable) as caught:
            await bench(fake, interference=40, rounds=1)
    assert caught.value.message == f"{fake.url}: the stream was over before the prompt was answered."


async def test_cases_are_a_table_of_two_servers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Those that are chosen, in the table's order, with ratios."""
    async with fake_openai() as first, fake_openai() as second:
        servers = ServerOptions(base_url=(first.url, second.url))
        output = OutputOptions(output=tmp_path / "out.json")
        status = await run_cases(servers, LengthOptions(), output, only=("shared-prefix", "streams-1"), rounds=1)
    assert status == 0
    lengths = Counter((len(body["prompt"]), body["max_tokens"]) for body in first.bodies if body["max_tokens"] > 2)
    assert lengths == {(128, 128): 3, (1056, 32): 16}
    figures = json.loads((tmp_path / "out.json").read_text())
    assert list(figures["cases"]) == ["streams-1", "shared-prefix"]
    assert figures["cases"]["streams-1"]["ratio"]["median"] > 0
    assert "1 stream, 128/128" in capsys.readouterr().out


MISTAKES = [
    (["serve", "--base-url", "x"], "--base-url must look like http://127.0.0.1:8000/v1, not 'x'."),
    (["serve", *["--base-url", "http://a"] * 3], "--base-url may be given once or twice, not 3 times."),
    (["serve", "--num-requests", "0"], "--num-requests must be at least 1, not 0."),
    (["serve", "--concurrency", "0"], "--concurrency must be at least 1, not 0."),
    (["serve", "--request-rate", "0"], "--request-rate must be above 0, not 0."),
    (["serve", "--request-rate", "inf"], "--request-rate must be above 0, not inf."),
    (["serve", "--timeout", "nan"], "--timeout must be above 0, not nan."),
    (["serve", "--vocab-size", "10"], "--vocab-size must be at least 1001, not 10."),
    (["serve", "--dataset", "poems"], 'Invalid value "poems" for --dataset.'),
    (["serve", "--goodput", "ttft:300", "speed:1"], "--goodput takes NAME:MILLISECONDS"),
    (["serve", "--extra-body", "[]"], "--extra-body must be a JSON object: Expected `object`, got `array`."),
    (["serve", "--base-url", "http://127.0.0.1:1"], "http://127.0.0.1:1 cannot be measured: the connection was"),
    (["cases", "--only", "streams-1", "dreams"], "--only takes streams-1, streams-8, streams-32, prefill, shared-p"),
    (["cases", "--rounds", "0"], "--rounds must be at least 1, not 0."),
    (["throughput", "--num-requests", "0"], "--num-requests must be at least 1, not 0."),
    (["latency", "--batch-size", "0"], "--batch-size must be at least 1, not 0."),
    (["startup", "--runs", "0"], "--runs must be at least 1, not 0."),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_flag(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit status 2."""
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"triolet: {message}")
    assert error.count("\n") == 1


async def test_the_figures_as_json_and_as_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--json prints them in place of the table, --plot draws both servers into one file."""
    path = tmp_path / "load.png"
    async with fake_openai() as first, fake_openai() as second:
        assert await bench(first, second, rounds=2, json=True, plot=path) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figures["servers"][name]["summary"]["num_completed"] for name in "AB"] == [8, 8]
    assert set(figures["ratios"]) >= {"output tok/s", "TTFT p50"}
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[20:24]) == 1152


async def test_a_picture_that_cannot_be_made_is_refused_before_the_load(tmp_path: Path) -> None:
    """No request is sent."""
    async with fake_openai() as fake:
        with pytest.raises(ConfigurationError, match=r"^--plot takes a file named \.png, \.svg or \.pdf, not "):
            await bench(fake, plot=tmp_path / "load.gif")
        assert not fake.prompts
