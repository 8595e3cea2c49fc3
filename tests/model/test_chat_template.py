"""Chat templates render as in transformers, in a sandbox, and blame the request for what goes wrong."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from triolet.engine.core.errors import InvalidRequest
from triolet.model.chat_template import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Was heißt <b>世界</b>? 🎉"},
    {"role": "assistant", "content": "World.", "reasoning": "Chinese."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": None},
]
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "blocks": "  {% for m in messages %}\n  {{ m.role }}\n  {% endfor %}\n{% if messages %}\nbot{% endif %}\n\n",
    "special tokens": "{{ bos_token }}{{ messages | length }}{{ eos_token }}{{ pad_token }}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': '<'} | tojson(sort_keys=1) }}",
    "loop": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "dict": "{{ dict(a=1) }}{{ dict.fromkeys(['x']) }}",
    "strftime": "{{ strftime_now('%Y') }}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}",
    "nulls": "{% for m in messages %}{{ m.name is defined }}{% endfor %}{{ tools is none }}{{ documents is none }}",
    "tools": "{% if tools %}{{ tools | tojson }}{% endif %}",
    "options": "{{ enable_thinking }}{{ bos_token }}",
    "macros": "{% macro say(x) %}[{{ x }}]{% endmacro %}{% for m in messages %}{{ say(m.role) }}{% endfor %}",
    "escapes": "{{ messages[1].content | upper | trim | replace('B', '&') }}",
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": (1, 2.5, True, None)}}}]},
    {"enable_thinking": False, "bos_token": "<mine>"},
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "tools", "kwargs"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_template_renders_as_in_transformers(name: str, options: dict[str, Any], add_generation_prompt: bool) -> None:
    """Every option, filter, global and tag that templates lean on."""
    template = TEMPLATES[name]
    ours = ChatTemplate(template, SPECIAL).render(TALK, add_generation_prompt=add_generation_prompt, **options)
    cleaned = [{key: value for key, value in message.items() if value is not None} for message in TALK]
    theirs, _ = render_jinja_template(
        conversations=[cleaned],
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        **{**SPECIAL, **options},
    )
    assert ours == theirs[0]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ dict.__call__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace(__class__=1) %}", "a namespace keeps no underscore-prefixed attribute such as"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "a namespace keeps no underscore-prefixed attribute such as"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[9]['role'] }}", "list object has no element 9"),
        ("{% include 'other' %}", "no loader for this environment"),
    ],
)
def test_what_a_template_does_wrong_is_the_requests_error(template: str, says: str) -> None:
    """raise_exception, syntax, sandbox, arithmetic: one line, naming the messages."""
    with pytest.raises(InvalidRequest) as refused:
        ChatTemplate(template, SPECIAL).render(TALK, add_generation_prompt=True)
    assert refused.value.message.startswith("The model's chat template refused the messages: ")
    assert says in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.param == "messages"


def test_the_next_request_is_served_after_a_bad_one() -> None:
    """A template keeps no state between two."""
    template = ChatTemplate("{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}ok", SPECIAL)
    with pytest.raises(InvalidRequest, match="one only"):
        template.render(TALK, add_generation_prompt=True)
    assert template.render(TALK[:1], add_generation_prompt=True) == "ok"


@pytest.mark.parametrize(
    ("messages", "says"),
    [([], "There must be at least one message."), (["hi"], "A message must be an object, not str.")],
)
def test_messages_that_are_none(messages: Any, says: str) -> None:
    """Refused before the template sees them."""
    with pytest.raises(InvalidRequest) as refused:
        ChatTemplate("{{ messages }}", SPECIAL).render(messages, add_generation_prompt=True)
    assert (refused.value.message, refused.value.param) == (says, "messages")


def test_a_model_may_have_a_template_for_tools() -> None:
    """By the names that transformers gives them."""
    template = ChatTemplate({"default": "plain", "tool_use": "tools"}, SPECIAL)
    assert template.render(TALK, add_generation_prompt=True) == "plain"
    assert template.render(TALK, add_generation_prompt=True, tools=[{"name": "f"}]) == "tools"
    with pytest.raises(InvalidRequest, match="The model has no default chat template, only rag, tool_use"):
        ChatTemplate({"rag": "", "tool_use": ""}, SPECIAL).render(TALK, add_generation_prompt=True)


def test_objects_with_methods_never_reach_a_template() -> None:
    """The sandbox does not know which of their methods are dangerous."""

    class File:
        def unlink(self) -> str:
            return "gone"

    template = ChatTemplate("{{ messages[0].content }}", SPECIAL)
    said = template.render([{"role": "user", "content": File()}], add_generation_prompt=True)
    assert said == "<File>"


CONTINUED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"


@pytest.mark.parametrize("content", ["Once upon", " Once upon a ", "user"])
def test_the_last_message_is_left_open_as_in_transformers(content: str) -> None:
    """The prompt ends where its content does, wherever else the same words stand."""
    talk = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    ours = ChatTemplate(CONTINUED, SPECIAL).render(talk, add_generation_prompt=False, continue_final_message=True)
    theirs, _ = render_jinja_template(conversations=[talk], chat_template=CONTINUED, continue_final_message=True)
    assert ours == theirs[0]
    assert ours == f"<user>{content.strip()}</><assistant>{content.strip()}"


@pytest.mark.parametrize("content", ["", "  ", None])
def test_a_message_without_text_cannot_be_continued(content: str | None) -> None:
    """The request's fault, and it names the field."""
    talk = [{"role": "assistant", "content": content}]
    with pytest.raises(InvalidRequest, match="the last message has no text") as caught:
        ChatTemplate(CONTINUED, SPECIAL).render(talk, add_generation_prompt=False, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_a_developer_is_the_system_to_a_template_that_knows_none() -> None:
    """One that does gets the role as it is."""
    talk = [{"role": "developer", "content": "a"}]
    assert ChatTemplate(CONTINUED, SPECIAL).render(talk, add_generation_prompt=False) == "<system>a</>"
    knows = CONTINUED + "{# developer #}"
    assert ChatTemplate(knows, SPECIAL).render(talk, add_generation_prompt=False) == "<developer>a</>"
