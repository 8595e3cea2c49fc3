"""From messages to a prompt: what chats, /tokenize and the rendering route have in common."""

from typing import Any

import attrs
import trio

from ..engine.core.errors import InvalidRequest
from ..engine.parsing.describe import described
from ..engine.prompt import ChatPrompt, Cut
from .embeddings import EmbeddingRequest
from .messages import Message, template_messages
from .parsing import formats_for
from .service import Service
from .tools import ToolUse, tool_use
from .wire import ChatRequest, CompletionRequest, TokenizeRequest

LONG_TOKENS = 4096
"""From here on tokens are turned into text in a worker thread, so that no stream stalls."""


def chat_prompt(
    service: Service,
    request: ChatRequest | TokenizeRequest,
    messages: list[Message],
    *,
    use: ToolUse | None = None,
) -> ChatPrompt:
    """The conversation of a request, its own template and variables with it where the server takes such, and its tools.

    Raises InvalidRequest.
    """
    if request.chat_template is not None and not service.config.trust_request_chat_template:
        raise InvalidRequest(
            "chat_template is not taken from requests here (--trust-request-chat-template).", param="chat_template"
        )
    continues = bool(request.continue_final_message)
    opens = request.add_generation_prompt is not False
    if continues and opens:
        raise InvalidRequest(
            "continue_final_message takes add_generation_prompt: false: the last message goes on, no new one begins.",
            param="continue_final_message",
        )
    formats = formats_for(service, template=request.chat_template, for_tools=use is not None)
    conversation = template_messages(messages)
    tools = None if use is None else tuple(tool.as_template_reads() for tool in use.tools)
    if not formats.knows_tools:
        conversation, tools = described(conversation, tools or (), formats.tools), None
    return ChatPrompt(
        messages=conversation,
        tools=tools,
        add_generation_prompt=opens,
        continue_final_message=continues,
        add_special_tokens=bool(request.add_special_tokens),
        documents=None if request.documents is None else tuple(request.documents),
        template_kwargs=_variables(request),
        chat_template=request.chat_template,
    )


def _variables(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """Those of the template. An effort of none also says so in Qwen's way."""
    given = request.chat_template_kwargs or {}
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    if effort is None:
        return given
    return {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {}), **given}


def tools_of(request: ChatRequest | TokenizeRequest) -> ToolUse | None:
    """Those that may be called. Raises InvalidRequest."""
    if isinstance(request, ChatRequest):
        return tool_use(request.tools, request.tool_choice, request.parallel_tool_calls)
    return tool_use(request.tools, None, None)


def request_prompt(service: Service, request: ChatRequest) -> ChatPrompt:
    """The prompt of a chat. Raises InvalidRequest."""
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    prompt = chat_prompt(service, request, request.messages, use=tools_of(request))
    return attrs.evolve(prompt, cut=cut_of(service, request, max_tokens))


def cut_of(
    service: Service,
    request: ChatRequest | CompletionRequest | EmbeddingRequest,
    max_tokens: int | None,
    *,
    answered: bool = True,
) -> Cut | None:
    """Where a request's prompts are cut. Raises InvalidRequest.

    -1 leaves room for the answer, or for a token of it where it has no limit; for none where it is not `answered`.
    """
    most = request.truncate_prompt_tokens
    limit = service.engine.max_model_len
    if most is None:
        return None
    if most > limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be at most {limit}, the tokens that the model takes, not {most}.",
            param="truncate_prompt_tokens",
        )
    if most == -1:
        most = max(1, limit - max(1, max_tokens or 1)) if answered else limit
    return Cut(num_tokens=most, side=request.truncation_side or "left")


async def text_of(service: Service, token_ids: tuple[int, ...] | list[int], **how: Any) -> str:
    """Tokens as text, without holding up the streams."""
    decode = service.engine.tokenizer.decode
    if len(token_ids) < LONG_TOKENS:
        return decode(token_ids, **how)
    return await trio.to_thread.run_sync(lambda: decode(token_ids, **how), abandon_on_cancel=True)
