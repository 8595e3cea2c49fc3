"""Which formats a model writes: named, or picked from its chat template.

Pure.
"""

from functools import lru_cache

import attrs

from .calls import ToolFormat
from .hermes import HermesFormat
from .llama3_json import Llama3JsonFormat
from .mistral import ARGS, MARK, MistralFormat
from .pythonic import PythonicFormat
from .qwen3_coder import Qwen3CoderFormat
from .reasoning import DEEPSEEK_R1, QWEN3, ReasoningFormat

TOOL_FORMATS: dict[str, ToolFormat] = {
    format.name: format
    for format in (HermesFormat(), Llama3JsonFormat(), MistralFormat(), Qwen3CoderFormat(), PythonicFormat())
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {format.name: format for format in (DEEPSEEK_R1, QWEN3)}


@attrs.frozen(kw_only=True)
class AnswerFormats:
    """The formats that a model writes its answers in."""

    tools: ToolFormat
    reasoning: ReasoningFormat | None
    knows_tools: bool
    """Its chat template shows the model its tools; otherwise they are described to it in the system's message."""


@lru_cache(maxsize=64)
def formats_of(template: str | None, *, tools: str | None = None, reasoning: str | None = None) -> AnswerFormats:
    """By the names of the formats; one that is None is picked by what the chat template says.

    A template that knows no tools, or tells no format, gets hermes; one without thinking marks no reasoning; the name
    `none` none in any case. Names that are not known raise KeyError.
    """
    text = template or ""
    thinks = _reasoning_of(text)
    if reasoning is not None:
        thinks = None if reasoning == "none" else REASONING_FORMATS[reasoning]
    format = _tools_of(text) if tools is None else TOOL_FORMATS[tools]
    if isinstance(format, MistralFormat):
        format = MistralFormat(named=ARGS in text)
    return AnswerFormats(tools=format, reasoning=thinks, knows_tools="tools" in text)


def _tools_of(template: str) -> ToolFormat:
    if MARK in template:
        return TOOL_FORMATS["mistral"]
    if "<function=" in template and "<parameter=" in template:
        return TOOL_FORMATS["qwen3_coder"]
    if "<tool_call>" in template:
        return TOOL_FORMATS["hermes"]
    if "func_name1(" in template or "<|python_start|>" in template:
        return TOOL_FORMATS["pythonic"]
    if "<|python_tag|>" in template or '"parameters": ' in template or "Environment: ipython" in template:
        return TOOL_FORMATS["llama3_json"]
    return TOOL_FORMATS["hermes"]


def _reasoning_of(template: str) -> ReasoningFormat | None:
    if "</think>" not in template:
        return None
    return DEEPSEEK_R1 if "<｜Assistant｜>" in template else QWEN3
