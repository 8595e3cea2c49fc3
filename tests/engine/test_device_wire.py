"""Frames between the engine and its runner process: whole however they are cut, and the same when they arrive."""

import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.ids import TokenId
from triolet.engine.core.logprobs import TokenLogprobs
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import JoinedSequence, StepPlan, StepResult
from triolet.engine.core.pooling import Pooling
from triolet.engine.core.repetition import RepetitionDetection
from triolet.engine.device_wire import (
    Failure,
    FrameBuffer,
    Kind,
    decode_plan,
    decode_result,
    encode,
    receive_frame,
)

ASKED: dict[str, Any] = {
    "presence_penalty": 0.5,
    "logit_bias": {3: -1.5},
    "allowed_token_ids": [1, 2],
    "bad_words": "x",
    "bad_word_token_ids": [[1, 2], [3]],
    "logprobs": 2,
    "prompt_logprobs": 0,
    "repetition_detection": RepetitionDetection(max_pattern_size=3),
    "grammar": GrammarSpec.json_schema({"type": "string"}, any_whitespace=False),
}
LOGPROBS = TokenLogprobs(
    token_id=TokenId(2), logprob=-0.5, rank=1, top_token_ids=(TokenId(2),), top_logprobs=(float("-inf"),)
)
FAILURE = Failure(kind="OSError", message="ü", out_of_memory=True)
FRAMES = [encode(Kind.READY), encode(Kind.STEP_FAILED, FAILURE), encode(Kind.STARTED, "x" * 300)]


@given(sizes=st.lists(st.integers(1, 50), max_size=40))
def test_frames_are_whole_however_the_bytes_come(sizes: list[int]) -> None:
    """Cut anywhere, in pieces of any size, the same frames come out in their order."""
    data = b"".join(FRAMES)
    buffer, seen = FrameBuffer(), []
    for size in sizes:
        seen += buffer.feed(data[:size])
        data = data[size:]
    seen += buffer.feed(data)
    assert [kind for kind, _ in seen] == [Kind.READY, Kind.STEP_FAILED, Kind.STARTED]
    assert msgspec.msgpack.decode(seen[1][1], type=Failure) == FAILURE


@pytest.mark.parametrize("cut", [0, 3, len(FRAMES[1]) - 1])
def test_a_socket_gives_whole_frames_and_then_nothing(cut: int) -> None:
    """What is cut off by the end of the other side is no frame."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(FRAMES[0] + FRAMES[1][:cut])
        first = receive_frame(ours)
        assert first is not None
        assert first[0] is Kind.READY
        assert receive_frame(ours) is None


def test_a_plan_and_a_result_arrive_as_they_were() -> None:
    """Every column, the parameters of a request, numbers at their limits, what is no number."""
    joined = JoinedSequence(
        sequence=1,  # type: ignore[arg-type]
        token_ids=(1, 2, 3),  # type: ignore[arg-type]
        num_prompt_tokens=3,
        num_computed=0,
        block_tables=((7, None), (8,)),  # type: ignore[arg-type]
        sampling=SamplingParams(n=2, temperature=0.3, stop="end", stop_token_ids=[5], seed=-(2**63), **ASKED),
        seed=2**63 - 1,
        prompt_logprobs_from=1,
        pooling=Pooling(kind="mean", dimensions=3),
    )
    plan = StepPlan(step=9, num_tokens=3, num_sequences=1, joined=(joined,), left=(4,), copy_sources=(1,))  # type: ignore[arg-type]
    result = StepResult(
        step=9,
        sequences=(1,),  # type: ignore[arg-type]
        token_ids=(2,),  # type: ignore[arg-type]
        candidates=((1, (2, 3), (-0.5, float("-inf"))),),  # type: ignore[arg-type]
        failed=((1, "why"),),  # type: ignore[arg-type]
        ruled_out=(4,),  # type: ignore[arg-type]
        forced=((1, (7, 8)),),  # type: ignore[arg-type]
        vectors=((1, b"\x00\xff"),),  # type: ignore[arg-type]
        logprobs=(LOGPROBS,),
        prompt_logprobs=((1, (1, (LOGPROBS, LOGPROBS))),),  # type: ignore[arg-type]
        seconds=0.25,
    )
    [(_, first), (_, second)] = FrameBuffer().feed(encode(Kind.PLAN, plan) + encode(Kind.RESULT, result))
    assert (decode_plan(first), decode_result(second)) == (plan, result)
