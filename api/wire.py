"""What clients send: the request bodies, their names, defaults and limits those of vLLM's OpenAI server.

Fields that are not listed are accepted and ignored. A few are listed only to be refused: those that would change the
shape of the answer, or what it promises, and cannot be served yet. Range checks of sampling live in SamplingParams.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..engine.core.errors import InvalidRequest
from ..engine.core.grammar import GrammarSpec
from ..engine.core.params import MAX_LOGPROB_TOKENS, LogprobsLimit, SamplingParams
from ..engine.core.repetition import RepetitionDetection
from .constraint import ResponseFormat, StructuredOutputs, grammar_of
from .messages import Message
from .tools import Tool, ToolChoice

MAX_PROMPTS = 1024
MAX_CHOICES = 1024
"""Most answers of one HTTP request, over all its prompts."""

MAX_STOP_TOKENS = 1024
MAX_BIASED_TOKENS = 1024

SAMPLING = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "logprob_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "use_beam_search",
    "length_penalty",
    "ignore_eos",
)
"""Fields that have the same name in SamplingParams."""

ChatTemplateText = Annotated[str, Meta(max_length=64 * 1024)]
Documents = Annotated[list[dict[str, Any]], Meta(max_length=1024)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """With include_usage: also on every chunk, for its choice so far."""


class RepetitionLimits(msgspec.Struct, kw_only=True):
    """When an answer that goes round in circles is ended."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2


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
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIASED_TOKENS)] | None = None
    allowed_token_ids: list[Token] | None = None
    bad_words: list[str] | None = None
    repetition_detection: RepetitionLimits | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None

    echo: bool | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Annotated[list[Token], Meta(max_length=MAX_LOGPROB_TOKENS)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None

    thinking_token_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """Most tokens of reasoning; -1: no limit."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    request_id: str | None = None
    timeout: float | None = None
    max_queue_time: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    user: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def grammar(self) -> GrammarSpec | None:
        return grammar_of(self.response_format, self.structured_outputs)

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
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest(
                "prompt_logprobs cannot be streamed: ask without stream (or echo them).", param="prompt_logprobs"
            )
        if self.use_beam_search and self.echo:
            raise InvalidRequest("echo cannot be combined with use_beam_search.", param="echo")

    def sampling(
        self,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        called: Mapping[str, str] | None = None,
        limit: LogprobsLimit | None = None,
        **more: Any,
    ) -> SamplingParams:
        """The sampling parameters; a null field has its default. `limit`: of what may be reported.

        `called` is what the client calls those that have another name here.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        given["seed"] = None if self.seed == -1 else self.seed
        given["grammar"] = self.grammar
        if (limits := self.repetition_detection) is not None:
            given["repetition_detection"] = RepetitionDetection(
                max_pattern_size=limits.max_pattern_size,
                min_pattern_size=limits.min_pattern_size or 1,
                min_count=limits.min_count,
            )
        try:
            params = SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **(given | more))
            return params if limit is None else limit.apply(params)
        except InvalidRequest as error:
            name = error.param or ""
            if called is None or name not in called:
                raise
            raise InvalidRequest(error.message.replace(name, called[name], 1), param=called[name]) from None


class ChatRequest(GenerateRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Documents | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_sampling(self, limit: LogprobsLimit | None = None, **more: Any) -> SamplingParams:
        """`more`: what follows from the model, beside the body: a constraint of tools, how it thinks."""
        called = {"logprobs": "top_logprobs", "thinking": "thinking_token_budget"}
        if "grammar" in more and more["grammar"] is not None and more["grammar"].param == "tools":
            called["grammar"] = "tool_choice"
        max_tokens = self.max_tokens
        if self.max_completion_tokens is not None:
            max_tokens = self.max_completion_tokens
            called["max_tokens"] = "max_completion_tokens"
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling(max_tokens=max_tokens, logprobs=logprobs, called=called, limit=limit, **more)

    def refuse_unserved(self) -> None:
        super().refuse_unserved()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs is only allowed together with logprobs: true.", param="top_logprobs")


class CompletionRequest(GenerateRequest, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[str | Token | list[Token]]
    suffix: str | None = None
    logprobs: int | None = None
    top_logprobs: int | None = None

    @property
    def prompt_only(self) -> bool:
        """Nothing is to be generated: the prompt is given back."""
        return bool(self.echo) and self.max_tokens == 0

    def to_sampling(self, limit: LogprobsLimit | None = None, **more: Any) -> SamplingParams:
        if self.echo and self.logprobs is not None and self.prompt_logprobs is None:
            more["prompt_logprobs"] = self.logprobs
        max_tokens = 16 if self.max_tokens is None else self.max_tokens
        # The engine generates at least a token: the one too many is not shown.
        called = {"thinking": "thinking_token_budget"}
        if "prompt_logprobs" in more:
            called["prompt_logprobs"] = "logprobs"
        return self.sampling(
            max_tokens=1 if self.prompt_only else max_tokens,
            logprobs=self.logprobs,
            called=called,
            limit=limit,
            **more,
        )

    def refuse_unserved(self) -> None:
        super().refuse_unserved()
        if self.top_logprobs is not None:
            raise InvalidRequest(
                "top_logprobs is a chat's: completions take logprobs as a number.", param="top_logprobs"
            )
        if self.suffix is not None and self.echo:
            raise InvalidRequest("suffix cannot be combined with echo.", param="suffix")


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    """By default with a prompt, and not with messages."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Documents | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[Token]
