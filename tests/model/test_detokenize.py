"""Text comes token by token, never half a character, and joined it is the whole, however the tokens are cut.

The law, for every tokenizer kind: `push`es + `flush` = decode(prompt + answer) without decode(prompt).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.model.test_tokenizer import spm_tokenizer
from tests.model.tiny import byte_tokenizer
from triolet.model.tokenizer import ChatTokenizer

REPLACEMENT = "\ufffd"
texts = st.lists(
    st.sampled_from(
        [
            "hello",
            " the",
            " ",
            "  ",
            "\n",
            "é",
            "e\u0301",
            "你好",
            "世界",
            "🎉",
            "👩‍👩‍👧",
            "🇫🇷",
            "ก็",
            "ℵ",
            "\ufffd",
            "1",
            "한",
        ]
    )
    | st.text(max_size=4).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)),
    max_size=12,
).map("".join)


def metaspace_tokenizer() -> Tokenizer:
    """The other sentencepiece spelling: Metaspace instead of Replace and Strip."""
    words = ["<unk>", "▁", "a", "b", "▁a", "▁b", "你", "▁▁", "é"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def word_tokenizer() -> Tokenizer:
    """Words joined by spaces: no decoder at all."""
    return Tokenizer(models.WordLevel({"<unk>": 0, "some": 1, "words": 2, "é": 3, "🎉": 4}, unk_token="<unk>"))


def word_piece_tokenizer() -> Tokenizer:
    """Continuations marked with ##."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "##s": 3, ".": 4}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    """Byte tokens, but nothing is taken off the front."""
    tokenizer = spm_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


MADE = {
    make.__name__.removesuffix("_tokenizer"): ChatTokenizer(make())
    for make in (
        byte_tokenizer,
        spm_tokenizer,
        gemma_tokenizer,
        metaspace_tokenizer,
        word_tokenizer,
        word_piece_tokenizer,
    )
}


def stream(
    tokenizer: ChatTokenizer, prompt: Sequence[int], ids: Sequence[int], cuts: Sequence[int], skip: bool
) -> list[str]:
    """The texts of the pushes and, last, of the flush."""
    decoder = tokenizer.incremental(prompt, skip_special_tokens=skip)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    said = [decoder.push(ids[start:end]) for start, end in pairwise(edges)]
    return [*said, decoder.flush()]


def breaks_off(tokenizer: ChatTokenizer, ids: Sequence[int]) -> bool:
    """Whether a run of byte tokens is not UTF-8: the one case that decoding at once treats otherwise."""
    run = b""
    for token_id in [*ids, None]:
        token = "" if token_id is None else MADE_TOKENS[tokenizer].get(token_id, "")
        if token.startswith("<0x"):
            run += bytes.fromhex(token[3:5])
            continue
        if run.decode(errors="replace").encode() != run:
            return True
        run = b""
    return False


MADE_TOKENS = {
    MADE[name]: {i: word for word, i in make().get_vocab().items()}
    for name, make in {"spm": spm_tokenizer, "gemma": gemma_tokenizer}.items()
}
cuts = st.lists(st.integers(0, 100), max_size=8)
patient = settings(deadline=None, max_examples=150)  # a busy machine is no fault


@patient
@given(data=st.data(), cuts=cuts, skip=st.booleans())
def test_random_ids_joined_are_the_whole(
    builtin_tokenizer: ChatTokenizer, data: Any, cuts: list[int], skip: bool
) -> None:
    """The built-in tokenizer: any ids, also special ones, unknown ones, and halves of characters."""
    ids = data.draw(st.lists(st.integers(0, 400) | st.integers(0, builtin_tokenizer.vocab_size + 5), max_size=40))
    assert "".join(stream(builtin_tokenizer, [], ids, cuts, skip)) == builtin_tokenizer.decode(
        ids, skip_special_tokens=skip
    )


@patient
@given(prompt=texts, answer=texts, cuts=cuts)
def test_an_answer_follows_its_prompt(
    builtin_tokenizer: ChatTokenizer, prompt: str, answer: str, cuts: list[int]
) -> None:
    """Emoji, Chinese, combining marks, spaces at the seam: prompt and answer joined are the whole."""
    before = builtin_tokenizer.encode(prompt)
    ids = builtin_tokenizer.encode(answer, add_special_tokens=False)
    said = stream(builtin_tokenizer, before, ids, cuts, True)
    assert builtin_tokenizer.decode(before) + "".join(said) == builtin_tokenizer.decode([*before, *ids])


@patient
@given(answer=texts)
def test_half_a_character_is_never_shown(builtin_tokenizer: ChatTokenizer, answer: str) -> None:
    """Token by token, no replacement character appears in text that has none."""
    ids = builtin_tokenizer.encode(answer, add_special_tokens=False)
    assume(REPLACEMENT not in builtin_tokenizer.decode(ids))  # its vocabulary lacks the bytes of a few characters
    said = stream(builtin_tokenizer, [], ids, range(len(ids)), True)
    assert not any(REPLACEMENT in text for text in said)
    assert said[-1] == ""


@pytest.mark.parametrize("name", MADE)
@patient
@given(data=st.data(), cuts=cuts, skip=st.booleans())
def test_every_kind_of_tokenizer(name: str, data: Any, cuts: list[int], skip: bool) -> None:
    """Any ids after any prompt; runs of byte tokens that are no UTF-8 are held to the next law."""
    tokenizer = MADE[name]
    some_ids = st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=24)
    spelled = texts.map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    prompt, ids = data.draw(some_ids | spelled), data.draw(some_ids | spelled)
    if tokenizer in MADE_TOKENS and breaks_off(tokenizer, [*prompt, *ids]):
        return
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    if before.endswith(REPLACEMENT):
        prompt, before = [], ""
    said = "".join(stream(tokenizer, prompt, ids, cuts, skip))
    assert before + said == tokenizer.decode([*prompt, *ids], skip_special_tokens=skip)


@patient
@given(data=st.data(), cuts=cuts)
def test_byte_tokens_that_are_no_character(data: Any, cuts: list[int]) -> None:
    """Whole characters of a run are shown; from the byte that breaks it on, each byte is one U+FFFD."""
    tokenizer = MADE["gemma"]
    run = data.draw(
        st.lists(st.sampled_from(["你".encode(), "🎉".encode(), b"a", b"\xe4", b"\xf0\x9f", b"\x80", b"\xff"]))
    )
    ids = [3 + byte for byte in b"".join(run)]
    data_bytes, shown = b"".join(run), ""
    while data_bytes:
        try:
            shown, data_bytes = shown + data_bytes.decode(), b""
        except UnicodeDecodeError as error:
            shown += data_bytes[: error.start].decode() + REPLACEMENT * (len(data_bytes) - error.start)
            data_bytes = b""
    assert "".join(stream(tokenizer, [], ids, cuts, True)) == shown
    if REPLACEMENT not in shown or not shown.strip(REPLACEMENT):
        assert shown == tokenizer.decode(ids)


def ids_of(tokenizer: ChatTokenizer, data: bytes) -> list[int]:
    """The byte-level tokens of single bytes, half characters included."""
    table = byte_tokenizer()
    alphabet = dict(enumerate(_spelling()))
    return [table.token_to_id(alphabet[byte]) for byte in data]


def _spelling() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spelled = bytes_to_unicode()
    return [spelled[byte] for byte in range(256)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("😀".encode(), ["", "", "", "😀", ""]),
        ("é!".encode(), ["", "é", "!", ""]),
        (b"\xf0\x9f\x98", ["", "", "", REPLACEMENT]),
        (b"\xf0\x9fa", ["", "", REPLACEMENT + "a", ""]),
        (b"\x80\x80", [REPLACEMENT, REPLACEMENT, ""]),
        (REPLACEMENT.encode(), ["", "", REPLACEMENT, ""]),
        (b"\xff" * 3, [REPLACEMENT] * 3 + [""]),
    ],
)
def test_what_is_held_back_and_until_when(data: bytes, said: list[str]) -> None:
    """At most three bytes; a real U+FFFD, or a byte that can become nothing, is shown at once."""
    ids = ids_of(MADE["byte"], data)
    assert stream(MADE["byte"], [], ids, range(len(ids)), True)[1:] == said


def test_a_character_that_the_prompt_began_is_finished() -> None:
    """A prompt of token ids may end in the middle of one: it is shown whole."""
    ids = ids_of(MADE["byte"], "a😀b".encode())
    assert "".join(stream(MADE["byte"], ids[:3], ids[3:], [], True)) == "😀b"


def test_special_tokens_are_left_out_or_shown() -> None:
    """As `skip_special_tokens` says; left out, they don't come between a word and its space."""
    tokenizer = MADE["spm"]
    he, space_he, end = (spm_tokenizer().token_to_id(token) for token in ("he", "▁he", "</s>"))
    assert stream(tokenizer, [], [space_he, end, space_he, he], [1, 2], True) == ["he", "", " hehe", ""]
    assert "".join(stream(tokenizer, [], [space_he, end, he], [], False)) == "he</s>he"


def test_a_long_answer_costs_the_same_for_each_token() -> None:
    """Decoding is never asked for more than two tokens, however long the text has become."""
    inner = byte_tokenizer()
    asked: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            return getattr(inner, name)  # type: ignore[no-any-return]

        def decode(self, ids: list[int], **options: Any) -> str:
            asked.append(len(ids))
            return inner.decode(ids, **options)

    tokenizer = ChatTokenizer(Counting())  # type: ignore[arg-type]
    decoder = tokenizer.incremental([])
    for _ in range(1000):
        decoder.push(inner.encode("hello").ids)
    assert max(asked, default=0) <= 2
