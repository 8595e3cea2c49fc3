"""The tokenizer equals transformers' for the same model, whatever its kind, and is asked for once."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from tests.model.tiny import CHAT_TEMPLATE, byte_tokenizer, write_folder, write_gguf, write_tokenizer
from triolet.engine.core.errors import ConfigurationError, InvalidRequest, ModelLoadError
from triolet.model.source import ModelSource, resolve_source
from triolet.model.tokenizer import ChatTokenizer, load_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces\tand\na tab\r\n\n\n",
    "The 3 numbers 12, 3456 and 7.8e9 (2024-02-29).",
    "naïve café — “quotes” … ¿",
    "你好,世界。こんにちは 안녕하세요",
    "🎉👩‍👩‍👧‍👦🇫🇷 e\u0301 a\u0308\u0323",
    "<|im_start|>user\nhi<|im_end|>",
    "def f(x):\n    return x ** 2  # ok\n",
    "\x00\x07\ufeff\u200b\ufffd",
    "A" * 300,
]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 世界 🎉 <b>2</b>"}]


def assert_equal(ours: ChatTokenizer, theirs: Any) -> None:
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids, text
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip), text
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size == len(theirs)


@pytest.fixture(scope="module")
def reference(builtin_source: ModelSource) -> Any:
    """What transformers makes of the built-in model's file."""
    return AutoTokenizer.from_pretrained(str(builtin_source.path.parent), gguf_file=builtin_source.path.name)


def test_the_built_in_tokenizer_equals_transformers(builtin_tokenizer: ChatTokenizer, reference: Any) -> None:
    """Words, code, numbers, scripts, emoji, control characters, special tokens in the text."""
    assert_equal(builtin_tokenizer, reference)


def test_the_built_in_model_splits_digits_off(builtin_tokenizer: ChatTokenizer, reference: Any) -> None:
    """Its vocabulary was learned so, which transformers does not read from the file. It shows in spaces before one."""
    text = "x = [\n    1,\n    23]"
    parts = [builtin_tokenizer.decode([i]) for i in builtin_tokenizer.encode(text)]
    assert parts == ["x", " =", " [", "\n    ", "1", ",", "\n    ", "2", "3", "]"]
    splitting = pre_tokenizers.Digits(individual_digits=True)
    backend = reference.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([splitting, backend.pre_tokenizer])
    assert builtin_tokenizer.encode(text) == backend.encode(text).ids


def test_a_chat_with_the_built_in_model_equals_transformers(builtin_tokenizer: ChatTokenizer, reference: Any) -> None:
    """The prompt, then its tokens without adding any: the template's own special tokens become single ids."""
    prompt = builtin_tokenizer.render(TALK)
    assert prompt == reference.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    ids = builtin_tokenizer.encode(prompt, add_special_tokens=False)
    assert ids == reference.apply_chat_template(TALK, add_generation_prompt=True)["input_ids"]
    assert ids.count(1) == 3
    assert builtin_tokenizer.render(TALK, add_generation_prompt=False) + "<|im_start|>assistant\n" == prompt


def spm_tokenizer() -> Tokenizer:
    """A small tokenizer of the sentencepiece kind: BPE over ▁ with byte tokens."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdehlort,.", "he", "▁he", "▁t"]
    model = models.BPE(
        {word: i for i, word in enumerate(words)},
        [("h", "e"), ("▁", "he"), ("▁", "t")],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(steps)
    special = [AddedToken(word, special=True, normalized=False) for word in ("<unk>", "<s>", "</s>")]
    tokenizer.add_special_tokens(special)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "settings"),
    [
        (byte_tokenizer, {}),
        (byte_tokenizer, {"add_bos_token": True}),
        (byte_tokenizer, {"add_bos_token": True, "add_eos_token": True}),
        (spm_tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}),
        (spm_tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}),
        (byte_tokenizer, {"additional_special_tokens": ["<|tool|>"], "pad_token": "<|pad|>"}),
    ],
)
def test_a_folders_tokenizer_equals_transformers(
    tmp_path: Path, empty_cache: Path, tokenizer: Any, settings: dict[str, Any]
) -> None:
    """Also what is added in front and behind, and added tokens; the first time and from the cache."""
    write_folder(tmp_path / "m", tokenizer=False)
    write_tokenizer(tmp_path / "m", tokenizer(), **settings)
    path = tmp_path / "m" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "m"))
    for _ in range(2):
        assert_equal(load_tokenizer(resolve_source(str(tmp_path / "m"))), theirs)


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_gguf_files_tokenizer_equals_transformers(tmp_path: Path, empty_cache: Path, add_bos: bool) -> None:
    """What the file says of the token in front is done."""
    write_gguf(tmp_path / "m.gguf", extra={"general.note": "x"}, add_bos=add_bos)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    ours = load_tokenizer(resolve_source(str(tmp_path / "m.gguf")))
    assert_equal(ours, theirs)
    assert (ours.encode("the")[0] == 1) is add_bos
    assert ours.render(TALK) == theirs.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)


def test_a_template_in_a_file_of_its_own_is_found(tmp_path: Path, empty_cache: Path) -> None:
    """chat_template.jinja is where transformers saves it now."""
    write_folder(tmp_path / "m")
    assert (tmp_path / "m" / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert load_tokenizer(resolve_source(str(tmp_path / "m"))).render(TALK[1:]).startswith("<|im_start|>user\nHi")


def test_transformers_is_asked_once(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start reads what was stored, and imports nothing of it."""
    write_folder(tmp_path / "m")
    source = resolve_source(str(tmp_path / "m"))
    first = load_tokenizer(source).encode("hello the end")
    monkeypatch.setitem(sys.modules, "transformers", None)  # importing it raises ImportError
    assert load_tokenizer(source).encode("hello the end") == first


def test_a_changed_folder_is_read_again(tmp_path: Path, empty_cache: Path) -> None:
    """The stored answer is for these files' contents."""
    write_folder(tmp_path / "m")
    assert load_tokenizer(resolve_source(str(tmp_path / "m"))).render(TALK) != "new"
    (tmp_path / "m" / "chat_template.jinja").write_text("new")
    assert load_tokenizer(resolve_source(str(tmp_path / "m"))).render(TALK) == "new"


@pytest.mark.parametrize("file", ["tokenizer.json", "settings.json"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, empty_cache: Path, file: str) -> None:
    """Half a file in the cache is no reason to refuse a start."""
    write_folder(tmp_path / "m")
    source = resolve_source(str(tmp_path / "m"))
    ids = load_tokenizer(source).encode("hello")
    (stored,) = empty_cache.rglob(file)
    stored.write_bytes(stored.read_bytes()[:20])
    assert load_tokenizer(source).encode("hello") == ids
    assert len(stored.read_bytes()) > 20


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tokenizer is there all the same, and the log says why the next start will be slow."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "file"))
    write_folder(tmp_path / "m")
    assert load_tokenizer(resolve_source(str(tmp_path / "m"))).encode("hello")
    assert "The tokenizer cannot be kept at" in caplog.text


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, empty_cache: Path) -> None:
    """The message lists the files that would do."""
    write_folder(tmp_path / "m", tokenizer=False)
    with pytest.raises(ModelLoadError, match=r"m: no tokenizer: there is none of .*tokenizer\.json"):
        load_tokenizer(resolve_source(str(tmp_path / "m")))


def test_a_damaged_tokenizer_is_refused(tmp_path: Path, empty_cache: Path) -> None:
    """One line that names the folder."""
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    with pytest.raises(ModelLoadError, match="m: the tokenizer cannot be read: ") as refused:
        load_tokenizer(resolve_source(str(tmp_path / "m")))
    assert "\n" not in refused.value.message


def test_a_gguf_file_without_a_vocabulary_is_refused(tmp_path: Path, empty_cache: Path) -> None:
    """Some hold weights alone."""
    write_gguf(tmp_path / "m.gguf", tokenizer=False)
    with pytest.raises(ModelLoadError, match=r"m\.gguf: the tokenizer cannot be read: "):
        load_tokenizer(resolve_source(str(tmp_path / "m.gguf")))


def test_a_tokenizer_that_brings_code_is_refused(tmp_path: Path, empty_cache: Path) -> None:
    """The module it names would leave a trace; it is not imported, and the message says so."""
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    path = tmp_path / "m" / "tokenizer_config.json"
    edits = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **edits}))
    with pytest.raises(ModelLoadError, match="the tokenizer cannot be read: "):
        load_tokenizer(resolve_source(str(tmp_path / "m")))
    assert not (tmp_path / "trace").exists()


def test_a_model_without_a_template_says_so() -> None:
    """And which route to use."""
    plain = ChatTokenizer(byte_tokenizer())
    assert not plain.has_chat_template
    with pytest.raises(InvalidRequest, match="This model has no chat template: use /v1/completions") as refused:
        plain.render(TALK)
    assert refused.value.param == "messages"


def test_text_that_is_no_unicode_is_refused() -> None:
    """JSON can spell half of a surrogate pair."""
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        ChatTokenizer(byte_tokenizer()).encode("a\ud83d")


def test_ids_that_are_no_tokens_decode_to_nothing() -> None:
    """Beyond the vocabulary (a padded model can say them), or no token ids at all."""
    tokenizer = ChatTokenizer(byte_tokenizer())
    ids = tokenizer.encode("hello")
    assert tokenizer.decode([*ids, 10**6, -1, 1 << 40]) == "hello"


def test_a_stored_truncation_does_not_cut_prompts() -> None:
    """Some tokenizer.json files carry the length of their training."""
    inner = byte_tokenizer()
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    assert len(ChatTokenizer(inner).encode("xyxyxyxy")) == 8


def test_a_tokens_bytes_are_its_share_of_the_text(builtin_tokenizer: ChatTokenizer) -> None:
    """Joined they are the text's bytes, also where a token is a part of a character; special tokens are themselves."""
    for text in TEXTS[1:-2]:
        ids = builtin_tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(builtin_tokenizer.token_bytes, ids)) == text.encode()
    assert builtin_tokenizer.token_bytes(10**6) == b""


def test_tokens_for_filling_in_are_found_by_their_spelling() -> None:
    """All three of one family, or none."""
    names = ["a", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    whole = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="a"))
    part = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names[:3])}, unk_token="a"))
    assert ChatTokenizer(whole).infill_token_ids == (1, 2, 3)
    assert ChatTokenizer(part).infill_token_ids is None


def test_a_template_of_ones_own_takes_the_place_of_the_models(builtin_source: ModelSource, tmp_path: Path) -> None:
    """--chat-template: a file or the template itself; a file that cannot be read is named."""
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    file = tmp_path / "chat.jinja"
    file.write_text(template)
    for given in (template, str(file)):
        assert load_tokenizer(builtin_source, chat_template=given).render([{"role": "user", "content": "x"}]) == "[x]"
    with pytest.raises(ConfigurationError, match=r"--chat-template /nowhere.jinja: No such file or directory\."):
        load_tokenizer(builtin_source, chat_template="/nowhere.jinja")
