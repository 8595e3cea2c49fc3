"""What clients send: the request bodies, their names, defaults and limits those of vLLM's OpenAI server.

Fields that are not listed are accepted and ignored. A few are listed only to be refused: those that would change the
shape of the answer, or what it promises, and cannot be served yet. Range checks of sampling live in SamplingParams.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..engine.core.errors import InvalidRequest
from ..engine.core.params import SamplingParams

MAX_PROMPTS = 1024
MAX_CHOICES = 1024
"""Most answers of one HTTP request, over all its prompts."""

MAX_STOP_TOKENS = 1024

SAMPLING = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "use_beam_search",
    "length_penalty",
    "ignore_eos",
)
"""Fields that have the same name in SamplingParams."""

ChatTemplateText = Annotated[str, Meta(max_length=64 * 1024)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Only `text` can be served."""

    type: str = "text"


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The fields that chats and completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Token], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None

    request_id: str | None = None
    timeout: float | None = None
    max_queue_time: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def refuse_unserved(self) -> None:
        """InvalidRequest for what would be answered wrongly if it were ignored."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed together with stream: true.", param="stream_options")
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest("best_of must equal n: every answer that is drawn is given.", param="best_of")
        if self.use_beam_search and self.stream:
            raise InvalidRequest(
                "use_beam_search cannot be streamed: its answers are known at the end.", param="use_beam_search"
            )
        refused: Iterable[str] = ("echo", "suffix", "logprobs", "top_logprobs")
        for name in refused:
            if getattr(self, name):
                raise InvalidRequest(f"{name} is not supported by this server.", param=name)
        if self.response_format is not None and self.response_format.type != "text":
            raise InvalidRequest(
                f"response_format.type must be 'text', not {self.response_format.type[:64]!r}.",
                param="response_format.type",
            )

    def sampling(self, *, max_tokens: int | None, max_tokens_field: str = "max_tokens") -> SamplingParams:
        """The sampling parameters; a null field has its default.

        `max_tokens_field` is what the client called its limit.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        seed = None if self.seed == -1 else self.seed
        try:
            return SamplingParams(max_tokens=max_tokens, seed=seed, **given)
        except InvalidRequest as error:
            if error.param != "max_tokens":
                raise
            text = error.message.replace("max_tokens", max_tokens_field, 1)
            raise InvalidRequest(text, param=max_tokens_field) from None


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content; only text can be read."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of a chat."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None


class ChatRequest(GenerateRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[msgspec.Raw] | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_sampling(self) -> SamplingParams:
        if self.max_completion_tokens is not None:
            return self.sampling(max_tokens=self.max_completion_tokens, max_tokens_field="max_completion_tokens")
        return self.sampling(max_tokens=self.max_tokens)

    def refuse_unserved(self) -> None:
        super().refuse_unserved()
        if self.tools:
            raise InvalidRequest("tools is not supported by this server.", param="tools")


class CompletionRequest(GenerateRequest, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[str | Token | list[Token]]

    def to_sampling(self) -> SamplingParams:
        return self.sampling(max_tokens=16 if self.max_tokens is None else self.max_tokens)


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[Token]


def template_messages(messages: list[Message], param: str = "messages") -> tuple[dict[str, Any], ...]:
    """Messages as a chat template reads them: the content one text, the parts of a list joined by line ends."""
    if not messages:
        raise InvalidRequest(f"{param} must hold at least one message.", param=param)
    result: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role, "content": _text(message, f"{param}[{index}].content")}
        if message.name is not None:
            entry["name"] = message.name
        result.append(entry)
    return tuple(result)


def _text(message: Message, param: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role != "assistant":
            raise InvalidRequest(f"{param} is required.", param=param)
        return ""
    for index, part in enumerate(content):
        if part.type != "text":
            where = f"{param}[{index}].type"
            raise InvalidRequest(f"{where} must be 'text', not {part.type[:64]!r}: only text can be read.", param=where)
        if part.text is None:
            raise InvalidRequest(f"{param}[{index}].text is required.", param=f"{param}[{index}].text")
    return "\n".join(part.text or "" for part in content)
