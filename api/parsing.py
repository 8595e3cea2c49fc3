"""How a request's answers are read: the parsers for its model's formats, and the count of its reasoning.

`Parsing` is made once for a request and starts a `Reading` for each of its answers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ..engine.core.thinking import Thinking, ThinkingTracker
from ..engine.parsing import (
    AnswerFormats,
    AnswerParser,
    CallStart,
    Delta,
    Function,
    Reasoning,
    ReasoningFormat,
    formats_of,
)

if TYPE_CHECKING:
    from ..engine.stream import Output
    from ..engine.tokenizer import TokenizerClient
    from .service import Service
    from .tools import ToolUse


@attrs.frozen(kw_only=True)
class Parsing:
    """What the answers to one request may hold beside content."""

    tokenizer: "TokenizerClient"
    formats: AnswerFormats
    functions: tuple[Function, ...] = ()
    """Those that may be called; none: text that looks like a call is content."""
    most_calls: int | None = None
    thinking: Thinking | None = None
    """Of a model that reasons."""
    include_reasoning: bool = True
    says_tool_calls: bool = True
    """An answer with calls ends with the finish reason `tool_calls`; where a function was named it says `stop`."""

    @property
    def shows_special_tokens(self) -> bool:
        """Whether the text must show special tokens, for one of its marks is special."""
        marks = list(self.formats.tools.markers) if self.functions else []
        if self.formats.reasoning is not None:
            marks += [self.formats.reasoning.start, self.formats.reasoning.end]
        return not all(self.tokenizer.mark(mark)[1] for mark in marks)

    def start(self, prompt_token_ids: Sequence[int]) -> "Reading":
        """For one answer to this prompt."""
        thinking = self.thinking
        if thinking is not None:
            thinking = thinking.behind(self.tokenizer.last_words(prompt_token_ids))
        return Reading(self, thinking)


class Reading:
    """One answer, as it comes."""

    def __init__(self, parsing: Parsing, thinking: Thinking | None) -> None:
        reasoning = tools = None
        # Where the prompt has closed the reasoning, a mark is text.
        if thinking is not None and parsing.formats.reasoning is not None and thinking.begins != "over":
            reasoning = parsing.formats.reasoning.parser(inside=thinking.begins == "inside")
        if parsing.functions:
            tools = parsing.formats.tools.parser(parsing.functions, most_calls=parsing.most_calls)
        self._parser = AnswerParser(reasoning=reasoning, tools=tools)
        self._tracker = None if thinking is None else ThinkingTracker(thinking, parsing.tokenizer.token_bytes)
        self._hides = not parsing.include_reasoning
        self.num_calls = 0
        """Calls that have begun."""

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._tracker is None else self._tracker.num_tokens

    def take(self, output: "Output") -> tuple["Output", list[Delta]]:
        """What the text of an output comes to; and the output, without the tokens of reasoning where that is not to be
        shown."""
        output = self._track(output)
        deltas = self._parser.push(output.text)
        if output.finish_reason is not None:
            deltas += self._parser.finish()
        self.num_calls += sum(isinstance(delta, CallStart) for delta in deltas)
        if self._hides:
            deltas = [delta for delta in deltas if not isinstance(delta, Reasoning)]
        return output, deltas

    def _track(self, output: "Output") -> "Output":
        if self._tracker is None:
            return output
        shown = [self._tracker.take(token) == "over" for token in output.token_ids]
        if not self._hides or all(shown):
            return output
        return attrs.evolve(
            output,
            token_ids=tuple(token for token, show in zip(output.token_ids, shown, strict=True) if show),
            logprobs=tuple(entry for entry, show in zip(output.logprobs, shown, strict=False) if show),
        )


def thinking_of(
    tokenizer: "TokenizerClient", format: ReasoningFormat | None, *, budget: int | None = None
) -> Thinking | None:
    """How a model of this format thinks, in its tokens."""
    if format is None:
        return None
    return Thinking(
        start=format.start,
        end=format.end,
        start_token_ids=tokenizer.mark(format.start)[0],
        end_token_ids=tokenizer.mark(format.end)[0],
        always=format.always,
        budget=budget,
    )


def formats_for(service: "Service", *, template: str | None, for_tools: bool) -> AnswerFormats:
    """The formats that a conversation is answered in; `template`: the request's own."""
    config = service.config
    source = template if template is not None else service.engine.tokenizer.chat_template(for_tools=for_tools)
    return formats_of(source, tools=config.tool_call_parser, reasoning=config.reasoning_parser)


def parsing_for(
    service: "Service",
    *,
    use: "ToolUse | None",
    template: str | None = None,
    budget: int | None = None,
    include_reasoning: bool = True,
) -> Parsing:
    """How the answers to a conversation are read."""
    formats = formats_for(service, template=template, for_tools=use is not None)
    tokenizer = service.engine.tokenizer
    return Parsing(
        tokenizer=tokenizer,
        formats=formats,
        functions=() if use is None else use.functions,
        most_calls=1 if use is not None and not use.parallel else None,
        thinking=thinking_of(tokenizer, formats.reasoning, budget=budget),
        include_reasoning=include_reasoning,
        says_tool_calls=use is not None and use.must != "named",
    )
