"""What the real engine refuses arrives over HTTP as an error that names the field, and harms nobody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.api.rig import error_of
from tests.model.tiny import VOCAB_SIZE, write_tokenizer
from triolet.engine.core.params import SamplingParams

from .asking import check_pool_is_free
from .models import MAX_LENGTH, Case, RandomModel, random_model
from .serving import Served, completion_body, serving, stream_completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEMPLATE = (
    "{% if messages[0].content == 'refuse' %}{{ raise_exception('Only polite words, please.') }}{% endif %}"
    "{% if messages[0].content == 'break' %}{{ nothing.at.all }}{% endif %}{{ messages[0].content }}"
)
LONG = [5] * (MAX_LENGTH + 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    """Its chat template refuses one word and breaks over another."""
    model = random_model(tmp_path_factory.mktemp("models") / "random")
    write_tokenizer(model.folder, chat_template=TEMPLATE)
    return model


@asynccontextmanager
async def still_serving(model: RandomModel, **fields: Any) -> AsyncIterator[Served]:
    """A server that answers a good request as well as ever once the bad ones are over."""
    (case,) = model.greedy_cases(1, 8)
    async with serving(model.config(**fields)) as served:
        before = await stream_completion(served, case)
        yield served
        assert (await served.client.get("/health")).status_code == 200
        assert await stream_completion(served, case) == before
        await served.wait_idle()
        check_pool_is_free(served.engine)


def says(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4}


REFUSED: list[tuple[str, dict[str, Any], str, tuple[str, ...]]] = [
    (COMPLETIONS, {"prompt": LONG}, "prompt", (str(len(LONG)), str(MAX_LENGTH))),
    (COMPLETIONS, {"prompt": "ab " * MAX_LENGTH}, "prompt", (str(3 * MAX_LENGTH), str(MAX_LENGTH))),
    (CHAT, says("ab " * MAX_LENGTH), "messages", (str(3 * MAX_LENGTH), str(MAX_LENGTH))),
    (COMPLETIONS, {"prompt": [5, VOCAB_SIZE]}, "prompt", (str(VOCAB_SIZE),)),
    (COMPLETIONS, {"prompt": [[5], [6, 10**6]]}, "prompt", (str(10**6),)),
    (COMPLETIONS, {"prompt": ""}, "prompt", ("empty",)),
    (COMPLETIONS, {"prompt": [5], "stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids", (str(VOCAB_SIZE),)),
    (COMPLETIONS, {"prompt": [5], "max_tokens": 4, "min_tokens": 5}, "min_tokens", ("min_tokens (5)",)),
    (CHAT, says("refuse"), "messages", ("Only polite words, please.",)),
    (CHAT, says("break"), "messages", ("nothing",)),
    (CHAT, says(""), "messages", ("empty",)),
    ("/tokenize", says("refuse"), "messages", ("Only polite words, please.",)),
    ("/detokenize", {"tokens": [5, VOCAB_SIZE]}, "tokens", (str(VOCAB_SIZE),)),
]


async def test_what_the_engine_refuses_is_a_400_that_names_the_field(model: RandomModel) -> None:
    """Streamed and not: a status of its own before anything is sent, and the error object says what and where."""
    async with still_serving(model) as served:
        for path, body, param, parts in REFUSED:
            for stream in (False, True):
                response = await served.client.post(path, json={**body, "stream": stream})
                assert response.status_code == 400, (body, response.text)
                error = error_of(response)
                assert (error["type"], error["param"]) == ("invalid_request_error", param)
                assert all(part in error["message"] for part in parts), error["message"]


async def test_a_model_without_a_template_sends_chats_to_completions(tmp_path: Path) -> None:
    """The chat route says what to do instead; completions work."""
    model = random_model(tmp_path / "random")
    (model.folder / "chat_template.jinja").unlink()
    async with still_serving(model) as served:
        response = await served.client.post(CHAT, json=says("hello"))
        assert response.status_code == 400
        assert error_of(response)["message"] == "The model has no chat template: send a prompt instead of messages."


async def test_a_full_queue_answers_503_before_it_tokenizes(model: RandomModel) -> None:
    """With one running and one waiting the next is refused at once, and says when to come back; the others go on."""
    endless = Case([5, 6, 7], [], SamplingParams(temperature=0, max_tokens=MAX_LENGTH - 3, ignore_eos=True))
    async with still_serving(model, max_num_seqs=1, max_num_queued_reqs=1) as served:
        answers: list[str] = []

        async def ask() -> None:
            answers.append(await stream_completion(served, endless))

        refused = {"prompt": "x" * 1000, "max_tokens": 1}
        async with served.client.stream("POST", COMPLETIONS, json=completion_body(endless, stream=True)) as running:
            lines = running.aiter_lines()
            await anext(lines)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                while served.engine.stats().waiting == 0:
                    await trio.testing.wait_all_tasks_blocked()
                response = await served.client.post(COMPLETIONS, json=refused)
            async for _ in lines:
                pass
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert error_of(response)["message"]
        assert len(answers) == 1
