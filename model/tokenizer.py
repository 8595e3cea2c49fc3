"""A model's tokenizer and chat template, as the engine uses them.

Imports tokenizers and jinja2, neither torch nor transformers: what transformers knows about tokenizers is asked once
per model, see `tokenizer_files.py`. A ChatTokenizer may be used from several threads at once.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..engine.core.errors import ConfigurationError, InvalidRequest
from .chat_template import ChatTemplate
from .detokenize import Detokenizer, IncrementalDecoder
from .source import ModelSource

INFILL_TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""How vocabularies spell what stands before a text, at the gap in it, and behind it."""


class ChatTokenizer:
    """Text to token ids and back, and messages to a prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | Mapping[str, str] | None = None,
        special_tokens: Mapping[str, Any] | None = None,
    ) -> None:
        """`special_tokens` are by transformers' names (bos_token, eos_token, …); the template sees them."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        names = special_tokens or {}
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self.special_tokens = dict(names)
        self._template = ChatTemplate(chat_template, names) if chat_template else None
        self.vocab_size: int = tokenizer.get_vocab_size()
        """With the added tokens; the model's own may be larger (padded)."""
        self.bos_token_id = self._id(names.get("bos_token"))
        self.eos_token_id = self._id(names.get("eos_token"))

    def _id(self, token: Any) -> int | None:
        return self._tokenizer.token_to_id(token) if isinstance(token, str) else None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's own end token; the model's configuration may name more."""
        return () if self.eos_token_id is None else (self.eos_token_id,)

    @property
    def infill_token_ids(self) -> tuple[int, int, int] | None:
        """The tokens for filling in a text (before it, at the gap, behind it), of a model that was taught to."""
        for names in INFILL_TOKENS:
            front, gap, end = map(self._tokenizer.token_to_id, names)
            if front is not None and gap is not None and end is not None:
                return front, gap, end
        return None

    def ids_of(self, tokens: Iterable[str]) -> frozenset[int]:
        """Those of the tokens that the vocabulary has."""
        found = map(self._tokenizer.token_to_id, tokens)
        return frozenset(token_id for token_id in found if token_id is not None)

    def plain_texts(self, *, shown: Container[int] = ()) -> list[bytes]:
        """What each token adds to a text that has begun; nothing for special tokens, but those that are `shown`. Takes
        a tenth of a second, the first time more."""
        pieces = (self._detokenizer.piece(token_id, token_id not in shown) for token_id in range(self.vocab_size))
        return [piece if isinstance(piece, bytes) else (piece or "").encode() for piece in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, inside a text, special or not; nothing for an id that is not in the vocabulary."""
        piece = self._detokenizer.piece(token_id, False)
        return piece if isinstance(piece, bytes) else (piece or "").encode()

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Their sources by name; `default` and `tool_use` count."""
        return {} if self._template is None else self._template.sources

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids. Special tokens spelled out in the text become themselves, as in transformers.

        Raises InvalidRequest for text that is not Unicode: half of a surrogate pair.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError):
            if not isinstance(text, str):
                raise
            raise InvalidRequest("The text holds half of a surrogate pair, which is no character.") from None

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text. Ids that the vocabulary does not have add nothing."""
        known = [token_id for token_id in token_ids if 0 <= token_id < 1 << 32]
        return self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        """The prompt that the model's chat template makes of the messages, to be encoded *without* special tokens.

        Raises InvalidRequest: when there is no template, and for what the template refuses.
        """
        if self._template is None:
            raise InvalidRequest("This model has no chat template: use /v1/completions.", param="messages")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **template_kwargs)

    def incremental(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for the answer to this prompt. O(1) but for a prompt that ends in many skipped tokens."""
        return self._detokenizer.start(prompt_ids, skip_special_tokens=skip_special_tokens)


def load_tokenizer(source: ModelSource, *, chat_template: str | None = None) -> ChatTokenizer:
    """The tokenizer of a model, its chat template the one that is given: a file, or the text of one.

    Slow (2 s) the first time, 0.1 s after. Raises ModelLoadError; ConfigurationError for a file that cannot be read.
    """
    from .tokenizer_files import stored_tokenizer

    tokenizer, settings = stored_tokenizer(source)
    template = settings.get("chat_template") if chat_template is None else _template_text(chat_template)
    return ChatTokenizer(tokenizer, chat_template=template, special_tokens=settings.get("special_tokens"))


def _template_text(given: str) -> str:
    """What has a brace followed by one, a percent sign or a number sign is a template; anything else names a file."""
    if any(mark in given for mark in ("{{", "{%", "{#")):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"--chat-template {given}: {reason}.") from None
