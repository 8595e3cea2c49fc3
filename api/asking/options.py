"""The flags of `triolet chat`, `triolet complete` and whatever else asks a server, and their checks. Nothing heavy."""

from typing import Annotated, Any

import attrs
import msgspec
from cyclopts import Parameter

from ...engine.core.errors import ConfigurationError
from ..config import KEY_VARIABLE


def _printable(_: object, __: object, value: str | None) -> None:
    if value is not None and not (value.isascii() and value.isprintable()):
        raise ConfigurationError("--api-key must be printable ASCII.")


def _object(_: object, __: object, value: str) -> None:
    try:
        msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--extra-body must be a JSON object: {error}.") from None


def at_least_one(_: object, attribute: "attrs.Attribute[Any]", value: int | None) -> None:
    """A validator that names the flag."""
    if value is not None and value < 1:
        raise ConfigurationError(f"--{attribute.name.replace('_', '-')} must be at least 1, not {value}.")


@attrs.frozen(kw_only=True)
class TargetOptions:
    """Whom to ask."""

    url: str | None = None
    """A server of OpenAI's protocol (http://127.0.0.1:8000/v1); without it the model is loaded in this process."""
    api_key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE, show_default=False)] = attrs.field(
        default=None, validator=_printable, repr=False
    )
    """Sent to --url as `Authorization: Bearer KEY`."""


@attrs.frozen(kw_only=True)
class AskOptions:
    """What to ask, and what to show."""

    model_name: str | None = None
    """The model's name at the server; without it the first that it lists."""
    quick: Annotated[str | None, Parameter(alias="-q")] = None
    """One message, answered, and the end; - takes all of standard input as the message."""
    max_tokens: int | None = attrs.field(default=None, validator=at_least_one)
    """Most tokens of an answer."""
    extra_body: str = attrs.field(default="{}", validator=_object)
    """A JSON object with fields for every request ({"temperature": 0}), over those that are sent anyway."""
    stats: bool = False
    """After each answer, on stderr: time to the first token, tokens, tokens a second."""

    @property
    def extra(self) -> dict[str, Any]:
        return msgspec.json.decode(self.extra_body, type=dict[str, Any])


@attrs.frozen(kw_only=True)
class ChatOptions(AskOptions):
    """A conversation."""

    system_prompt: str | None = None
    """A system message that the conversation begins with."""


@attrs.frozen(kw_only=True)
class CompleteOptions(AskOptions):
    """Texts to go on with."""

    max_tokens: int | None = attrs.field(default=128, validator=at_least_one)
    """Most tokens of an answer."""
