"""Renders a model's chat template, in a sandbox and within limits: it comes with the model and is not trusted.

Imports jinja2, nothing of transformers: importing the function there costs 0.5 s at every start, this 0.04 s. The
environment is transformers' own, option for option, and what the template sees is what it sees there (nulls dropped,
plain data alone, reasoning under all its names); `tests/model/test_chat_template.py` compares the two. Everything that
goes wrong inside a template is an `InvalidRequest` for one client, never an error of the engine.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.utils import Namespace

from ..engine.core.errors import InvalidRequest
from .template_limits import MODEL_LIMITS, LimitedEnvironment, Limits, limited

MOST_SAID = 1000
"""Characters of a template's own words in an error."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A template, or several by name of which `default` and `tool_use` count. Safe to render from several threads."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        special_tokens: Mapping[str, Any],
        *,
        limits: Limits = MODEL_LIMITS,
        whose: str = "model",
    ) -> None:
        """`whose` template it is, for errors: the model's or the request's."""
        self._limits = limits
        self._whose = whose
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        """By name."""
        self._special_tokens = dict(special_tokens)
        self._templates: dict[str, jinja2.Template] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt. `kwargs` are seen by the template, and go before the special tokens of the same name.

        `continue_final_message`: it ends where the last message's content does. A template that does not know
        developers reads their messages as the system's.
        Raises InvalidRequest: for no messages, and for whatever the template says or does wrong.
        """
        if not messages:
            raise InvalidRequest("There must be at least one message.", param="messages")
        tools = kwargs.pop("tools", None)
        documents = kwargs.pop("documents", None)
        text = self._render(messages, tools, documents, add_generation_prompt, kwargs)
        return _cut_behind(text, messages[-1].get("content")) if continue_final_message else text

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any,
        documents: Any,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        knows_developers = any("developer" in source for source in self.sources.values())
        try:
            with limited(self._limits):
                return self._template(bool(tools)).render(
                    messages=[_message(message, knows_developers) for message in messages],
                    tools=_plain(tools),
                    documents=_plain(documents),
                    add_generation_prompt=add_generation_prompt,
                    **{**self._special_tokens, **_plain(kwargs)},
                )
        except InvalidRequest:
            raise
        except Exception as error:  # a template is a program: it can raise anything
            said = _ADDRESS.sub("", " ".join(str(error).split())) or type(error).__name__
            text = f"The {self._whose}'s chat template refused the messages: {said[:MOST_SAID]}"
            raise InvalidRequest(text, param="messages" if self._whose == "model" else "chat_template") from error

    def _template(self, has_tools: bool) -> jinja2.Template:
        if has_tools and "tool_use" in self.sources:
            return self._compiled("tool_use")
        if "default" in self.sources:
            return self._compiled("default")
        names = ", ".join(sorted(self.sources))
        raise InvalidRequest(f"The model has no default chat template, only {names}.", param="messages")

    def _compiled(self, name: str) -> jinja2.Template:
        template = self._templates.get(name)
        if template is None:  # two threads may both compile it: the same, so either may stay
            template = self._templates[name] = self._environment.from_string(self.sources[name])
        return template

    @cached_property
    def _environment(self) -> LimitedEnvironment:
        environment = LimitedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.add_filter("tojson", _tojson)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        # jinja2's own `dict` and `namespace` let a template reach the attributes of a class, or store some.
        environment.globals["dict"] = _Dict()
        environment.globals["namespace"] = _Namespace
        return environment


class _GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration is a plain set

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """`dict` without the class behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace` that keeps no name which begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=...)` works, as in jinja2
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace keeps no underscore-prefixed attribute such as {name!r}")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is; jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _cut_behind(text: str, content: Any) -> str:
    """The rendered text up to the end of the last message's content, as transformers finds it: the last place where
    that stands, with the space behind it where the template kept that."""
    words = content.strip() if isinstance(content, str) else ""
    place = text.rfind(words) if words else -1
    if place < 0:
        raise InvalidRequest(
            "continue_final_message: the last message has no text, or the chat template does not show it as it is.",
            param="continue_final_message",
        )
    whole = content.lstrip()
    return text[: place + len(whole if text.startswith(whole, place) else words)]


def _message(message: Mapping[str, Any], knows_developers: bool) -> dict[str, Any]:
    """One message as plain data: no nulls at its top, and its reasoning under each name that templates read."""
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"A message must be an object, not {type(message).__name__}.", param="messages")
    plain: dict[str, Any] = {key: _plain(value) for key, value in message.items() if value is not None}
    if plain.get("role") == "developer" and not knows_developers:
        plain["role"] = "system"
    for name in _REASONING:
        if name in plain:
            return {"thinking": plain[name], **plain, "reasoning_content": plain[name]}
    return plain


def _plain(value: Any) -> Any:
    """Rebuilt out of JSON's types, because other objects have methods that the sandbox does not know."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value) if base is not str else str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value) if type(value) in (list, tuple) else list(map(_plain, value))
    return f"<{type(value).__name__}>"
