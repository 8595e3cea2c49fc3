"""The body of `POST /v1/responses`, and the chat that it asks for.

A field that this server does not know is refused, as OpenAI refuses it. Those that say nothing about the answer
(`user`, `metadata`, hints for caches) are accepted; what would change it and cannot be served is refused by name.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...engine.core.errors import InvalidRequest
from ..constraint import JsonSchemaFormat, ResponseFormat
from ..messages import Message
from ..wire import MAX_BIASED_TOKENS, ChatRequest, Effort
from .items import InputItem
from .tools import ResponseTool, ResponseToolChoice, chat_tools, echoed

MAX_ITEMS = 65536
LOGPROBS = "message.output_text.logprobs"

INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""All but the first concern what is never in an answer here."""

REFUSED = ("conversation", "prompt", "context_management", "moderation", "background_options")

PASSED = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "min_tokens",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "include_reasoning",
    "thinking_token_budget",
    "chat_template_kwargs",
    "request_id",
    "timeout",
    "max_queue_time",
    "priority",
    "cache_salt",
    "stream",
    "user",
    "metadata",
)
"""Fields that a chat has too."""


class TextFormat(msgspec.Struct, kw_only=True):
    """The form of the answer; a schema stands right here, not one level down as in chats."""

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None

    def to_chat(self) -> ResponseFormat | None:
        match self.type:
            case "text":
                return None
            case "json_object":
                return ResponseFormat(type="json_object")
            case "json_schema":
                given = {"name": self.name, "description": self.description, "strict": self.strict}
                return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=self.schema, **given))  # type: ignore[arg-type]
        raise InvalidRequest(
            f"text.format.type must be one of text, json_object, json_schema, not {self.type[:64]!r}.",
            param="text.format.type",
        )


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What kind of text is wanted."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much to think. Summaries are not made: what was thought is in the answer as it is."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    """`include_obfuscation` hides the lengths of deltas: nothing is added here, and TLS records are not padded."""

    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/responses."""

    model: str | None = None
    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None

    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    background_options: Any = None

    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIASED_TOKENS)] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    request_id: str | None = None
    timeout: float | None = None
    max_queue_time: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def stores(self) -> bool:
        return self.store is not False

    @property
    def num_top(self) -> int | None:
        """How many rivals of each token to list; None: no log-probabilities at all."""
        if self.top_logprobs is None and LOGPROBS not in (self.include or ()):
            return None
        return self.top_logprobs or 0

    def items(self) -> list[InputItem]:
        """What the request itself says. Raises InvalidRequest."""
        if self.input is None or self.input == []:
            raise InvalidRequest("input is required: a text, or a list of items.", param="input")
        if isinstance(self.input, str):
            return [InputItem(type="message", role="user", content=self.input)]
        return self.input

    def refuse_unserved(self) -> None:
        """InvalidRequest for what would be answered wrongly if it were ignored."""
        for name in REFUSED:
            if getattr(self, name) not in (None, []):
                raise InvalidRequest(f"{name} is not supported by this server.", param=name)
        for index, name in enumerate(self.include or ()):
            if name not in INCLUDABLE:
                raise InvalidRequest(
                    f"include[{index}] must be one of {', '.join(INCLUDABLE)}, not {name[:64]!r}.",
                    param=f"include[{index}]",
                )
        if self.truncation == "auto":
            raise InvalidRequest("truncation must be 'disabled': nothing is left out silently.", param="truncation")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise InvalidRequest("text.verbosity must be 'medium': it cannot be chosen here.", param="text.verbosity")
        if self.background and self.stream:
            raise InvalidRequest(
                "background cannot be combined with stream: ask GET /v1/responses/{id} how far it is.",
                param="background",
            )
        if self.background and not self.stores:
            raise InvalidRequest("background takes store: true: its answer is read later.", param="background")

    def to_chat(self, messages: list[Message]) -> ChatRequest:
        """The chat whose answer is this response's. Raises InvalidRequest."""
        text_format = None if self.text is None else self.text.format
        passed = {name: getattr(self, name) for name in PASSED}
        tools, tool_choice = chat_tools(self.tools, self.tool_choice)
        return ChatRequest(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            logprobs=None if self.num_top is None else True,
            top_logprobs=self.num_top or None,
            tools=tools,
            tool_choice=tool_choice,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
            response_format=None if text_format is None else text_format.to_chat(),
            **passed,
        )

    def echo(self) -> dict[str, Any]:
        """What a response repeats of its request."""
        text_format = (self.text and self.text.format) or TextFormat()
        effort = None if self.reasoning is None else self.reasoning.effort
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": effort, "summary": None},
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
            "service_tier": "default",
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": {k: v for k, v in msgspec.structs.asdict(text_format).items() if v is not None}},
            "tool_choice": "auto" if self.tool_choice is None else self.tool_choice,
            "tools": echoed(self.tools),
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }
