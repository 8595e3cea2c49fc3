"""The tokenizer actor: short prompts at once, long ones in bounded worker threads, faults the request's own."""

import threading

import pytest
import trio
import trio.testing

from triolet.engine.core.errors import InvalidRequest, RequestFailed
from triolet.engine.prompt import ChatPrompt, TextPrompt, num_characters
from triolet.engine.tokenizer import LONG_PROMPT_CHARACTERS, WORKER_THREADS, TokenizerClient

from .simulated import VOCAB_SIZE, ByteTokenizer


class Watched(ByteTokenizer):
    """Notes the threads it is called in; can be held."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.threads.append(threading.get_ident())
        self.may_go.wait()
        return super().encode(text, add_special_tokens=add_special_tokens)


def client(tokenizer: ByteTokenizer) -> TokenizerClient:
    return TokenizerClient(tokenizer, vocab_size=VOCAB_SIZE)


async def test_only_long_prompts_leave_the_loops_thread() -> None:
    """Length decides, of a text as of a conversation."""
    tokenizer, here = Watched(), threading.get_ident()
    long = "a" * LONG_PROMPT_CHARACTERS
    await client(tokenizer).encode(TextPrompt(text=long[1:]))
    await client(tokenizer).encode(TextPrompt(text=long))
    await client(tokenizer).encode(ChatPrompt(messages=[{"role": "user", "content": long}]))
    assert [thread == here for thread in tokenizer.threads] == [True, False, False]


def test_every_text_of_a_conversation_counts() -> None:
    """However deep it lies."""
    deep: object = "abc"
    for _ in range(10_000):
        deep = [deep]
    assert num_characters(ChatPrompt(messages=[{"role": "user", "content": deep}])) == len("user") + len("abc")


async def test_the_worker_threads_are_bounded_also_after_a_cancellation() -> None:
    """Threads whose request has left still count, so a storm of cancelled long prompts starts no storm of threads."""
    tokenizer = Watched()
    tokenizer.may_go.clear()
    tokens = client(tokenizer)
    prompt = TextPrompt(text="a" * LONG_PROMPT_CHARACTERS)
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(tokens.encode, prompt)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert len(tokenizer.threads) <= WORKER_THREADS
    tokenizer.may_go.set()
    assert len(await tokens.encode(prompt)) == LONG_PROMPT_CHARACTERS


async def test_a_token_that_the_model_lacks_is_refused() -> None:
    """A tokenizer may know more tokens than the model has embeddings for: such a prompt never reaches the device."""
    tokens = TokenizerClient(ByteTokenizer(), vocab_size=100)
    with pytest.raises(InvalidRequest, match="integers from 0 to 99; the one at position 1 is 120"):
        await tokens.encode(TextPrompt(text="ax"))
    with pytest.raises(InvalidRequest) as caught:
        tokens.decode([100])
    assert caught.value.param == "tokens"
    assert tokens.decode(list(b"abc")) == "abc"


async def test_a_tokenizer_that_breaks_in_a_thread_is_the_requests_fault_too() -> None:
    """A long conversation whose template raises ends as RequestFailed, which shows nothing of the inside."""
    messages = [{"content": "raise"}, {"content": "a" * LONG_PROMPT_CHARACTERS}]
    with pytest.raises(RequestFailed) as caught:
        await client(ByteTokenizer()).encode(ChatPrompt(messages=messages))
    assert caught.value.message == "The prompt could not be tokenized."
