"""`--trace`: a Chrome trace of steps and requests, beside the metrics."""

import json
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.engine.simulated import simulate
from triolet.api.metrics import Metrics
from triolet.api.trace import DETOKENIZER, DEVICE, SCHEDULER, tracing
from triolet.engine.core.errors import ConfigurationError, InvalidRequest
from triolet.engine.core.params import SamplingParams
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions


async def test_a_trace_has_steps_actors_and_requests(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Two steps of a second each on the device's line, the other actors on theirs, the request with its queue, prefill
    and decode on its own."""
    path, metrics = tmp_path / "out.json", Metrics()
    params = SamplingParams(max_tokens=2)
    with tracing(str(path), metrics) as observer:
        async with (
            run_engine(simulate().parts, observer=observer) as engine,
            engine.generate("hello\n", params, request_id="mine") as stream,
        ):
            _ = [output async for output in stream]
    events = json.loads(path.read_text())
    steps = [event for event in events if event["name"] == "step"]
    assert [event["args"]["tokens"] for event in steps] == [6, 1]
    stays = {event["name"]: event["ts"] for event in events if event["ph"] == "b"}
    ends = {event["name"]: event["ts"] for event in events if event["ph"] == "e"}
    assert stays == {"mine": 0.0, "queue": 0.0, "prefill": 0.0, "decode": 1e6}
    assert ends["mine"] == ends["decode"] == 2e6
    assert {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"} == {
        "scheduler loop": SCHEDULER,
        "device": DEVICE,
        "detokenizer": DETOKENIZER,
    }
    detokenized = [(event["tid"], event["ts"]) for event in events if event["name"] == "detokenize"]
    assert detokenized == [(DETOKENIZER, 0.0), (DETOKENIZER, 1e6), (DETOKENIZER, 2e6)]
    page = metrics.render()[0].decode()
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name=""} 1.0' in page
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name=""} 1.0' in page


async def test_who_never_came_to_the_scheduler_is_in_it_too(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A request whose deadline came while it was tokenized, one that was refused; no moment is before the trace's."""
    path = tmp_path / "out.json"
    await trio.sleep(5)
    with tracing(str(path), Metrics()) as observer:
        async with run_engine(simulate(num_blocks=2).parts, observer=observer) as engine:
            options = RequestOptions(deadline=trio.current_time())
            async with engine.generate("hello\n", request_id="late", options=options) as stream:
                _ = [output async for output in stream]
            with pytest.raises(InvalidRequest):
                await engine.generate("hello\n" * 99, request_id="too long").__aenter__()
    events = json.loads(path.read_text())
    stays = {event["name"]: (event["ts"], event["args"]["reason"]) for event in events if event["ph"] == "b"}
    assert stays == {"late": (0.0, "timeout"), "too long": (0.0, None)}


def test_without_the_flag_there_is_no_trace() -> None:
    """The engine observes into the metrics themselves."""
    metrics = Metrics()
    with tracing(None, metrics) as observer:
        assert observer is metrics


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """At the start, naming the flag."""
    with (
        pytest.raises(
            ConfigurationError, match=r"^--trace .*out\.json cannot be written: No such file or directory\.$"
        ),
        tracing(str(tmp_path / "missing" / "out.json"), Metrics()),
    ):
        pass
