"""Chat templates, the model's and a request's: off unless allowed, in a sandbox, bounded in time and in size."""

import json
from typing import Any

import pytest
import trio

from tests.api.fake_engine import FakeEngine
from tests.api.rig import chat, error_of, serving
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.prompt import ChatPrompt
from triolet.engine.tokenizer import TokenizerClient
from triolet.model.chat_template import ChatTemplate
from triolet.model.template_limits import REQUEST_LIMITS

from ..engine.simulated import VOCAB_SIZE, ByteTokenizer
from ..limits import REAL_LIMIT_S

TALK = [{"role": "user", "content": "Hi"}]
FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
CANARY = "{{ ''.__class__.__mro__[1].__subclasses__() }}"

BOMBS = {
    "loops": (FOREVER, "takes longer than 1 s"),
    "macros": ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}", "longer"),
    "flood": (
        "{% for a in range(99999) %}{% for b in range(999) %}{{ 'x' * 999 }}{% endfor %}{% endfor %}",
        "more than",
    ),
    "doubling by ~": (
        "{% set n = namespace(a='a') %}{% for a in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "more",
    ),
    "doubling by +": (
        "{% set n = namespace(a='a') %}{% for a in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "more",
    ),
    "shared lists": (
        "{% set n = namespace(a=['a']) %}{% for a in range(99) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
        "more than",
    ),
    "shared lists as JSON": (
        "{% set n = namespace(a=['a']) %}{% for a in range(99) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
        "{{ n.a | tojson }}",
        "more than",
    ),
    "block": ("{% set a %}{% for i in range(999) %}{{ 'x' * 100000 }}{% endfor %}{% endset %}", "too much text"),
    "repeated text": ("{{ 'a' * 10 ** 10 }}", "more than"),
    "repeated list": ("{{ [0] * 10 ** 10 }}", "more than"),
    "power": ("{{ 10 ** (10 ** 8) }}", "more than"),
    "ljust": ("{{ 'a'.ljust(10 ** 9) }}", "a number over 1000 is given to ljust"),
    "center": ("{{ 'a' | center(10 ** 9) }}", "a number over 1000 is given to center"),
    "indent": ("{{ 'a' | indent(10 ** 9) }}", "a number over 1000"),
    "json indent": ("{{ [1] | tojson(indent=10 ** 9) }}", "a number over 1000"),
    "format method": ("{{ '{:1000000000}'.format(1) }}", "width"),
    "format nested": ("{{ '{:{}}'.format(1, '1000000000') }}", "width"),
    "format filter": ("{{ '%1000000000d' | format(1) }}", "width"),
    "percent": ("{{ '%1000000000d' % 1 }}", "width"),
    "percent star": ("{{ '%*d' % (1000000000, 1) }}", "width"),
    "replace": ("{{ ('a' * 100000).replace('', 'b' * 100000) }}", "more than"),
    "replace filter": ("{{ ('a' * 100000) | replace('a', 'b' * 100000) }}", "more than"),
    "join": ("{{ ','.join(['a' * 100000] * 100000) }}", "more than"),
    "join filter": ("{{ (['a' * 100000] * 100000) | join }}", "more than"),
    "string filter": ("{{ (['a' * 100000] * 100000) | string }}", "more than"),
    "range": ("{{ range(10 ** 9) | list }}", "Range too big"),
    "lipsum": ("{{ lipsum(n=10 ** 9) }}", "'lipsum' is undefined"),
    "recursion": ("{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}", "recursion"),
    "class walk": (CANARY, "access to attribute '__class__' of 'str' object is unsafe"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_would_not_end_or_not_fit_is_stopped(name: str) -> None:
    """Each way of making much out of little is measured before it is done, and says what it went over."""
    source, says = BOMBS[name]
    with pytest.raises(InvalidRequest) as refused:
        ChatTemplate(source, {}, limits=REQUEST_LIMITS).render(TALK, add_generation_prompt=True)
    assert says in refused.value.message
    assert " at 0x" not in refused.value.message


def test_an_honest_template_that_makes_much_is_not_stopped() -> None:
    """A thousand long messages, tools with indentation, every filter: far from the limits."""
    source = (
        "{% for m in messages %}{{ '<' + m.role + '>' ~ m.content | trim | replace('x', 'yy') }}{% endfor %}"
        "{{ tools | tojson(indent=4) }}{{ messages | map(attribute='role') | join(', ') }}"
    )
    talk = [{"role": "user", "content": "x" * 5000}] * 1000
    text = ChatTemplate(source, {}).render(talk, add_generation_prompt=True, tools=[{"a": list(range(1000))}])
    assert text.count("<user>") == 1000
    assert text.count("yy") == 5_000_000


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_requests_template_is_refused_unless_allowed(path: str) -> None:
    """400 naming the field and the flag, before the engine hears of it; an empty template too."""
    async with serving() as rig:
        for template in (FOREVER, ""):
            response = await rig.post(path, chat(chat_template=template))
            assert response.status_code == 400
            error = error_of(response)
            assert error["param"] == "chat_template"
            assert error["message"].endswith("(--trust-request-chat-template).")
        assert not rig.engine.seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "documents", "add_generation_prompt", "chat_template", "self", "_x", "__class__", "a b", ""],
)
async def test_kwargs_cannot_take_the_place_of_what_has_a_field(path: str, name: str) -> None:
    """400 naming the field, never a 500; other names reach the template."""
    async with serving() as rig:
        response = await rig.post(path, chat(chat_template_kwargs={name: []}))
        assert response.status_code == 400
        assert error_of(response)["param"] == "chat_template_kwargs"
        assert not rig.engine.seen
        assert (await rig.post(path, chat(chat_template_kwargs={"enable_thinking": False}))).status_code == 200


class Templated(ByteTokenizer):
    """Bytes, and special tokens for a template to see."""

    special_tokens = {"bos_token": "<s>"}  # noqa: RUF012 - the protocol's own is a plain mapping


class TemplatedEngine(FakeEngine):
    """Answers nothing, but tokenizes as the real engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = TokenizerClient(Templated(), vocab_size=VOCAB_SIZE)  # type: ignore[assignment]


async def test_an_allowed_template_is_rendered_apart_and_sees_what_the_models_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages, variables, special tokens, the generation prompt; its text becomes the prompt."""
    monkeypatch.setattr("triolet.engine.template_process.TIME_S", REAL_LIMIT_S)
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}{{ add_generation_prompt }}"
    fields = {"chat_template": source, "chat_template_kwargs": {"mood": "glad"}, "add_generation_prompt": False}
    async with serving(TemplatedEngine(), trust_request_chat_template=True) as rig:
        answer = await rig.post("/tokenize", chat(**fields))
        assert bytes(answer.json()["tokens"]) == b"<s>HigladFalse"


@pytest.mark.parametrize("source", [FOREVER, CANARY, "{% if %}", "{{ raise_exception('no') }}", r"{{ '\ud800' }}"])
async def test_health_answers_while_a_requests_template_is_stopped(source: str) -> None:
    """The rendering is its request's trouble alone: an error of its own, and the server goes on meanwhile."""
    async with serving(TemplatedEngine(), trust_request_chat_template=True) as rig, trio.open_nursery() as nursery:
        asked = trio.Event()
        answers: list[Any] = []

        async def ask() -> None:
            asked.set()
            answers.append(await rig.post("/tokenize", chat(chat_template=source)))

        nursery.start_soon(ask)
        await asked.wait()
        for _ in range(10):
            assert (await rig.client.get("/health")).status_code == 200
        while not answers:
            assert (await rig.client.get("/health")).status_code == 200
        assert answers[0].status_code == 400
        error = error_of(answers[0])
        assert error["param"] == "chat_template"
        assert error["message"].startswith("The request's chat template ")


async def test_what_no_limit_sees_is_ended_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of crafted lists takes for ever in one step: the kernel, or the time on the wall, ends it."""
    monkeypatch.setattr("triolet.engine.template_process.TIME_S", 1.0)
    source = (
        "{% set n = namespace(a=['a'], b=['a']) %}"
        "{% for i in range(99) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}"
    )
    client = TokenizerClient(Templated(), vocab_size=VOCAB_SIZE)
    with pytest.raises(InvalidRequest) as refused:
        await client.encode(ChatPrompt(messages=TALK, chat_template=source))
    assert refused.value.message == "The request's chat template took too much time or memory, and was stopped."
    assert refused.value.param == "chat_template"


async def test_a_template_longer_than_64_ki_characters_is_refused() -> None:
    """Before it is compiled."""
    async with serving(TemplatedEngine(), trust_request_chat_template=True) as rig:
        response = await rig.client.post("/tokenize", content=json.dumps(chat(chat_template="x" * 65_537)))
        assert response.status_code == 400
        assert error_of(response)["param"] == "chat_template"
