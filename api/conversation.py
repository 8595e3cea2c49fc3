"""From a chat's body to what the engine is asked: the prompt, the parameters, and how the answers are read.

Other protocols that say the same in other words make a `ChatRequest` and come here.
"""

from typing import Any, NamedTuple

import attrs

from ..engine.core.errors import InvalidRequest
from ..engine.core.params import SamplingParams
from ..engine.core.thinking import Thinking
from ..engine.prompt import ChatPrompt
from .parsing import Parsing, formats_for, parsing_for, thinking_of
from .rendering import request_prompt, tools_of
from .service import Service
from .wire import ChatRequest, CompletionRequest


class Conversation(NamedTuple):
    """What is to be done for one chat."""

    prompt: ChatPrompt
    params: SamplingParams
    parsing: Parsing | None
    """None: the answers hold content alone."""


def conversation_of(service: Service, request: ChatRequest) -> Conversation:
    """Raises InvalidRequest naming the field."""
    use, limit = tools_of(request), service.engine.logprobs_limit
    prompt = request_prompt(service, request)
    parsing = parsing_for(
        service,
        use=use,
        template=request.chat_template,
        budget=_budget(request),
        include_reasoning=request.include_reasoning is not False,
    )
    if parsing.thinking is None:
        _refuse_budget(request)
    elif prompt.continue_final_message:
        parsing = attrs.evolve(parsing, thinking=_going_on(parsing.thinking, prompt))
    more: dict[str, Any] = {}
    grammar = request.grammar
    if use is not None:
        grammar = more["grammar"] = use.constraint(parsing.formats.tools, grammar)
    if parsing.thinking is not None and (grammar is not None or parsing.thinking.budget is not None):
        more["thinking"] = parsing.thinking
    if not (parsing.functions or parsing.thinking):
        return Conversation(prompt, request.to_sampling(limit, **more), None)
    if parsing.shows_special_tokens:
        more["skip_special_tokens"] = False
    return Conversation(prompt, request.to_sampling(limit, **more), parsing)


def budget_of(service: Service, request: CompletionRequest) -> dict[str, Any]:
    """The parameters that follow from the budget of a completion's reasoning. Raises InvalidRequest."""
    budget = _budget(request)
    if budget is None:
        return {}
    formats = formats_for(service, template=None, for_tools=False)
    thinking = thinking_of(service.engine.tokenizer, formats.reasoning, budget=budget)
    if thinking is None:
        _refuse_budget(request)
    return {"thinking": thinking}


def _budget(request: ChatRequest | CompletionRequest) -> int | None:
    return None if request.thinking_token_budget == -1 else request.thinking_token_budget


def _refuse_budget(request: ChatRequest | CompletionRequest) -> None:
    if _budget(request) is not None:
        raise InvalidRequest(
            "thinking_token_budget takes a model that marks its reasoning (--reasoning-parser).",
            param="thinking_token_budget",
        )


def _going_on(thinking: Thinking, prompt: ChatPrompt) -> Thinking:
    """An answer that goes on with a message begins where that one stops."""
    begun = str(prompt.messages[-1].get("content") or "")
    opened = begun.rfind(thinking.start)
    return attrs.evolve(thinking, begins="inside" if opened >= 0 and thinking.end not in begun[opened:] else "over")
