"""Which formats are picked for a model."""

import pytest

from triolet.engine.parsing import formats_of

TEMPLATES = [
    (None, "hermes", None, False),
    ("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", "hermes", None, False),
    ("{% if tools %}<tools>{{ tools }}</tools><tool_call>{% endif %}", "hermes", None, True),
    ("{% if tools %}{% endif %}<tool_call>{% if enable_thinking %}<think>\n\n</think>", "hermes", "qwen3", True),
    ("{% if tools %}<tool_call><function=f><parameter=p>{% endif %}", "qwen3_coder", None, True),
    ("{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}[TOOL_CALLS]", "mistral", None, True),
    ("{{ tools }}Environment: ipython<|python_tag|>", "llama3_json", None, True),
    ("{{ tools }}[func_name1(params_name1=params_value1)]", "pythonic", None, True),
    ("{{ tools }}<｜Assistant｜><think>\n{{ x.split('</think>') }}", "hermes", "deepseek_r1", True),
]


@pytest.mark.parametrize(("template", "tools", "reasoning", "knows_tools"), TEMPLATES)
def test_formats_are_picked_from_the_template(
    template: str | None, tools: str, reasoning: str | None, knows_tools: bool
) -> None:
    """By the marks that it writes; hermes where it tells none."""
    formats = formats_of(template)
    assert formats.tools.name == tools
    assert (formats.reasoning and formats.reasoning.name) == reasoning
    assert formats.knows_tools is knows_tools


def test_a_name_goes_before_the_template() -> None:
    """And `none` turns reasoning off."""
    template = "{{ tools }}<tool_call></think>"
    formats = formats_of(template, tools="pythonic", reasoning="deepseek_r1")
    assert formats.tools.name == "pythonic"
    assert formats.reasoning is not None
    assert formats.reasoning.name == "deepseek_r1"
    assert formats_of(template, reasoning="none").reasoning is None
