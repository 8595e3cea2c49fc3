"""The bodies of `POST /v1/messages` and of its token count, and the chat that they ask for.

A field that this server does not know is refused, as Anthropic refuses it. What says nothing about the answer is
accepted; what would change it and cannot be served is refused by name.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...engine.core.errors import InvalidRequest
from ..constraint import JsonSchemaFormat, ResponseFormat
from ..errors import ThreadUnsupported
from ..wire import MAX_BIASED_TOKENS, ChatRequest, Effort
from .tools import MessageTool, MessageToolChoice, chat_choice, chat_tools
from .turns import Block, Turn, messages_of

REFUSED = ("container", "mcp_servers")

PASSED = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "request_id",
    "timeout",
    "max_queue_time",
    "priority",
    "cache_salt",
)
"""Fields that a chat has too."""


class ThinkingOptions(msgspec.Struct, kw_only=True):
    """Whether to think before answering; without it, not, as far as the model's template lets it be chosen."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The form of the answer: a JSON schema."""

    type: str
    schema: dict[str, Any] | bool | None = None


class OutputOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much effort, and in which form."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class TokenCountRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/messages/count_tokens."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    cache_control: Any = None
    diagnostics: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None

    container: Any = None
    mcp_servers: Any = None
    context_management: Any = None
    thread: Any = None

    def refuse_unserved(self) -> None:
        """InvalidRequest for what would be answered wrongly if it were ignored."""
        for name in REFUSED:
            if getattr(self, name) not in (None, []):
                raise InvalidRequest(f"{name} is not supported by this server.", param=name)
        if self.thread is not None:
            raise ThreadUnsupported(
                "thread is not supported by this server: send the whole conversation.", param="thread"
            )
        if not _edits_nothing(self.context_management):
            raise InvalidRequest(
                "context_management is not supported by this server, but for edits that keep everything.",
                param="context_management",
            )
        if self.speed not in (None, "standard"):
            raise InvalidRequest("speed must be 'standard'.", param="speed")

    def to_chat(self) -> ChatRequest:
        """The chat whose answer is this one's. Raises InvalidRequest."""
        return self.chat()

    def chat(self, **more: Any) -> ChatRequest:
        """With what the two bodies have in common. A last turn of the assistant is gone on with."""
        messages = messages_of(self.messages, self.system)
        goes_on = messages[-1].role == "assistant"
        effort = None if self.output_config is None else self.output_config.effort
        one_call = self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use
        more["chat_template_kwargs"] = {**self._thinking(), **(self.chat_template_kwargs or {})}
        return ChatRequest(
            messages=messages,
            continue_final_message=goes_on or None,
            add_generation_prompt=not goes_on,
            response_format=self._format(),
            tools=chat_tools(self.tools),
            tool_choice=chat_choice(self.tool_choice),
            parallel_tool_calls=False if one_call else None,
            reasoning_effort=effort,
            thinking_token_budget=None if self.thinking is None else self.thinking.budget_tokens,
            include_reasoning=False if self.thinking is not None and self.thinking.display == "omitted" else None,
            **more,
        )

    def _thinking(self) -> dict[str, Any]:
        thinking = self.thinking or ThinkingOptions(type="disabled")
        if thinking.type not in ("enabled", "adaptive", "disabled"):
            raise InvalidRequest(
                f"thinking.type must be enabled, adaptive or disabled, not {thinking.type[:64]!r}.",
                param="thinking.type",
            )
        if thinking.type == "enabled" and thinking.budget_tokens is None:
            raise InvalidRequest(
                "thinking.budget_tokens is required where thinking is enabled.", param="thinking.budget_tokens"
            )
        return {"enable_thinking": thinking.type != "disabled"}

    def _format(self) -> ResponseFormat | None:
        given = None if self.output_config is None else self.output_config.format
        if given is None:
            return None
        if given.type != "json_schema":
            raise InvalidRequest(
                f"output_config.format.type must be json_schema, not {given.type[:64]!r}.",
                param="output_config.format.type",
            )
        return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=given.schema))


def _edits_nothing(management: Any) -> bool:
    """Clients send it to ask that no thinking be cleared, which is what happens here in any case."""
    edits = management.get("edits") if isinstance(management, dict) else management
    if edits is None:
        return True
    return isinstance(edits, list) and all(isinstance(edit, dict) and edit.get("keep") == "all" for edit in edits)


class MessagesRequest(TokenCountRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None

    min_p: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIASED_TOKENS)] | None = None
    request_id: str | None = None
    timeout: float | None = None
    max_queue_time: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    def to_chat(self) -> ChatRequest:
        passed = {name: getattr(self, name) for name in PASSED}
        return self.chat(max_tokens=self.max_tokens, stop=self.stop_sequences, **passed)
