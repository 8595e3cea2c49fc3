"""POST /v1/embeddings over real sockets: every form of input, what comes back, what is refused, and leaving."""

from array import array
from base64 import b64decode
from typing import Any

import pytest

from tests.api.fake_engine import HIDDEN_SIZE, FakeEngine
from tests.api.rig import error_of, raw_post, serving
from triolet.api.embeddings import AT_ONCE
from triolet.engine.core.errors import Overloaded
from triolet.engine.core.events import FinishReason


def numbers(*first: int, kind: int = 0, dimensions: int = HIDDEN_SIZE) -> list[float]:
    """What the fake engine gives for these tokens."""
    found = [*map(float, first), *[0.0] * HIDDEN_SIZE][:dimensions]
    found[-1] = float(kind)
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", [(94, 97)]),
        (["a", "bc"], [(94, 97), (94, 98, 99)]),
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
async def test_an_input_is_a_text_or_tokens_or_a_list_of_those(given: Any, expected: list[tuple[int, ...]]) -> None:
    """One vector for each, in order, and the tokens counted over all."""
    engine = FakeEngine()
    engine.cached_tokens = 1
    async with serving(engine) as rig:
        response = await rig.post("/v1/embeddings", {"input": given, "model": "fake"})
        assert response.status_code == 200
        body = response.json()
        assert (body["object"], body["model"]) == ("list", "fake")
        assert [row["embedding"] for row in body["data"]] == [numbers(*tokens) for tokens in expected]
        assert [(row["object"], row["index"]) for row in body["data"]] == [
            ("embedding", index) for index in range(len(expected))
        ]
        count = sum(map(len, expected))
        assert body["usage"] == {
            "prompt_tokens": count,
            "total_tokens": count,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": len(expected)},
        }


async def test_a_vector_may_be_base64_shorter_and_pooled_otherwise() -> None:
    """encoding_format, dimensions, pooling; the server's default pooling is a flag."""
    async with serving(embedding_pooling="mean") as rig:
        body = {"input": [1, 2], "encoding_format": "base64", "dimensions": 3}
        data = (await rig.post("/v1/embeddings", body)).json()["data"][0]["embedding"]
        assert array("f", b64decode(data)).tolist() == numbers(1, 2, kind=1, dimensions=3)
        answer = (await rig.post("/v1/embeddings", {"input": [1, 2], "pooling": "last"})).json()
        assert answer["data"][0]["embedding"] == numbers(1, 2, kind=0)


async def test_an_input_may_be_cut() -> None:
    """truncate_prompt_tokens keeps the end, or with truncation_side the beginning; -1 is what the model takes."""
    async with serving(FakeEngine(max_model_len=4)) as rig:

        async def vector(**fields: Any) -> list[float]:
            body = {"input": [1, 2, 3, 4, 5], **fields}
            return list((await rig.post("/v1/embeddings", body)).json()["data"][0]["embedding"])

        assert await vector(truncate_prompt_tokens=2) == numbers(4, 5)
        assert await vector(truncate_prompt_tokens=2, truncation_side="right") == numbers(1, 2)
        refused = error_of(await rig.post("/v1/embeddings", {"input": [1], "truncate_prompt_tokens": 5}))
        assert refused["message"].startswith("truncate_prompt_tokens must be at most 4")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "input", "input is required."),
        ({"input": []}, "input", "input must not be an empty list."),
        ({"input": ["a", 1]}, "input[1]", "input[1] is malformed: input must be all texts"),
        ({"input": [[1], []]}, "input[1]", "input[1] must not be an empty list."),
        ({"input": ["a"] * 1025}, "input", "input may hold at most 1024 prompts, not 1025."),
        ({"input": [1000]}, "input", "1000 is not in the vocabulary."),
        ({"input": "a", "dimensions": 9}, "dimensions", "dimensions must be from 1 to 8, the model's hidden size"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions must be an integer of at least 1, not 0."),
        ({"input": "a", "pooling": "max"}, "pooling", "pooling"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "truncate_prompt_tokens"),
    ],
)
async def test_what_makes_no_sense_is_refused(fields: dict[str, Any], param: str, message: str) -> None:
    """400 with the field's name and the range."""
    async with serving() as rig:
        response = await rig.post("/v1/embeddings", fields)
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, param)
        assert error["message"].startswith(message)


async def test_a_client_that_leaves_takes_its_request_with_it() -> None:
    """Every input's scope is left as soon as the connection is gone."""
    engine = FakeEngine(hold="prefill")
    async with serving(engine) as rig:
        async with await rig.connect() as stream:
            await stream.send_all(raw_post("/v1/embeddings", {"input": ["a", "b"]}))
            for seen in (await engine.wait_seen(1), await engine.wait_seen(2)):
                await seen.event("prefill").wait()
        for seen in engine.seen:
            await seen.left.wait()
        await rig.wait_closed()


@pytest.mark.parametrize(("max_queued", "at_once"), [(1024, AT_ONCE), (5, 2), (1, 1)])
async def test_a_long_list_goes_through_the_queue_in_parts(max_queued: int, at_once: int) -> None:
    """No more than so many inputs are in the engine at a time, half of a short queue, and all have their vectors in the
    end."""
    engine = FakeEngine(hold="prefill")
    await engine.controls.change(max_num_queued_reqs=max_queued)
    async with serving(engine) as rig:

        async def release() -> None:
            last = await engine.wait_seen(at_once)
            await last.event("prefill").wait()
            assert len(engine.seen) == at_once
            engine.release()

        rig.nursery.start_soon(release)
        numbers = range(at_once + 5)
        answer = (await rig.post("/v1/embeddings", {"input": [[number] for number in numbers]})).json()
        assert [row["embedding"][0] for row in answer["data"]] == list(numbers)


@pytest.mark.parametrize(
    ("reason", "why", "status", "code", "message"),
    [
        (FinishReason.TIMEOUT, None, 408, "timeout", "The request's time was over before all of its inputs had"),
        (FinishReason.ABORT, "cancelled", 400, "cancelled", "The request was cancelled before all of its inputs had"),
    ],
)
async def test_half_an_answer_is_an_error(
    reason: FinishReason, why: str | None, status: int, code: str, message: str
) -> None:
    """A deadline, or being cancelled by name: there is no vector to give."""
    engine = FakeEngine()
    engine.finish_reason, engine.stop_reason = reason, why
    async with serving(engine) as rig:
        response = await rig.post("/v1/embeddings", {"input": "a"})
        error = error_of(response)
        assert (response.status_code, error["code"]) == (status, code)
        assert error["message"].startswith(message)


async def test_a_full_queue_refuses_the_whole_request() -> None:
    """503 and when to come back."""
    engine = FakeEngine()
    engine.refusal = Overloaded("The queue is full.", retry_after_s=3)
    async with serving(engine) as rig:
        response = await rig.post("/v1/embeddings", {"input": ["a", "b"]})
        assert (response.status_code, response.headers["retry-after"]) == (503, "3")
