"""What a prompt may say beside its text: where it is cut, what the template sees, and the gap that is to be filled."""

import attrs
import pytest

from triolet.engine.core.errors import InvalidRequest
from triolet.engine.prompt import ChatPrompt, Cut, InfillPrompt, Prompt, TextPrompt, TokenPrompt, num_characters
from triolet.engine.tokenizer import TokenizerClient

from .simulated import VOCAB_SIZE, ByteTokenizer


class Filling(ByteTokenizer):
    """Knows what stands around a gap, and adds a token of its own in front where it may."""

    infill_token_ids = (1, 2, 3)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return ([0] if add_special_tokens else []) + super().encode(text)


TOKENS = TokenizerClient(Filling(), vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("form", [TextPrompt(text="abcde"), TokenPrompt(token_ids=tuple(b"\0abcde"))])
async def test_a_long_prompt_loses_its_beginning_or_its_end(form: Prompt) -> None:
    """The last or the first tokens stay; one that is short enough stays as it is."""

    async def cut(num_tokens: int, side: str) -> bytes:
        return bytes(await TOKENS.encode(attrs.evolve(form, cut=Cut(num_tokens=num_tokens, side=side))))

    assert await cut(2, "left") == b"de"
    assert await cut(2, "right") == b"\0a"
    assert await cut(6, "left") == await cut(99, "right") == b"\0abcde"


async def test_a_gap_is_asked_for_with_the_models_own_tokens() -> None:
    """Front, the text, gap, what follows it, end: and nothing else is added. A model without them is a 400."""
    prompt = InfillPrompt(text="ab", suffix="c")
    assert await TOKENS.encode(prompt) == (1, *b"ab", 2, *b"c", 3)
    assert num_characters(prompt) == 3
    with pytest.raises(InvalidRequest, match="no tokens for filling in") as caught:
        await TokenizerClient(ByteTokenizer(), vocab_size=VOCAB_SIZE).encode(prompt)
    assert caught.value.param == "suffix"


async def test_a_conversation_gets_special_tokens_where_it_asks() -> None:
    """The template writes them itself; `add_special_tokens` adds the tokenizer's own."""
    messages = ({"role": "user", "content": "x"},)
    assert await TOKENS.encode(ChatPrompt(messages=messages)) == tuple(b"x\n")
    assert await TOKENS.encode(ChatPrompt(messages=messages, add_special_tokens=True)) == tuple(b"\0x\n")


def test_documents_and_continuing_are_variables_of_the_template() -> None:
    """They go beside the request's own variables, and count as characters."""
    prompt = ChatPrompt(
        messages=(), template_kwargs={"a": 1}, documents=({"text": "four"},), continue_final_message=True
    )
    assert prompt.variables == {"a": 1, "documents": [{"text": "four"}], "continue_final_message": True}
    assert num_characters(prompt) == 4
    assert ChatPrompt(messages=()).variables == {}
