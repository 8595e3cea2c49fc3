"""`triolet chat` and `triolet complete`: the commands; nothing heavy until one runs."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Group, Parameter

from ...engine.config import EngineConfig
from ...engine.core.errors import ConfigurationError
from .options import ChatOptions, CompleteOptions, TargetOptions

if TYPE_CHECKING:
    from .talk import Chat, Completion

_ASKING = Group.create_ordered("Asking")
_ENGINE = Group.create_ordered("Engine (without --url)")

TARGET = TargetOptions()
ENGINE = EngineConfig()
CHAT = ChatOptions()
COMPLETE = CompleteOptions()

Target = Annotated[TargetOptions, Parameter(name="*", group=_ASKING)]
Engine = Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)]


def with_model(model: str | None, engine: EngineConfig) -> EngineConfig:
    """The configuration with the model that the command names. Raises ConfigurationError when it is named twice."""
    if model is None:
        return engine
    if engine.model is not None:
        raise ConfigurationError("Give the model once: as MODEL or as --model.")
    return attrs.evolve(engine, model=model)


def chat(
    model: str | None = None,
    /,
    *,
    target: Target = TARGET,
    options: Annotated[ChatOptions, Parameter(name="*", group=_ASKING)] = CHAT,
    engine: Engine = ENGINE,
) -> int:
    """Talk with a model: of a server at --url, or loaded here.

    In a pipe each line is a message, and the answers are plain text. Ctrl-C ends an answer, Ctrl-D the conversation.

    Parameters
    ----------
    model
        A folder (Hugging Face layout), a .gguf file or a hub name (owner/name). Without one, the built-in model.
    """
    from .talk import Chat

    return _talk(Chat(options=options), target, with_model(model, engine))


def complete(
    model: str | None = None,
    /,
    *,
    target: Target = TARGET,
    options: Annotated[CompleteOptions, Parameter(name="*", group=_ASKING)] = COMPLETE,
    engine: Engine = ENGINE,
) -> int:
    """Have texts gone on with: by a model of a server at --url, or loaded here.

    On a terminal each line is a text of its own, in a pipe all of it is one. Ctrl-C ends an answer, Ctrl-D the command.

    Parameters
    ----------
    model
        A folder (Hugging Face layout), a .gguf file or a hub name (owner/name). Without one, the built-in model.
    """
    from .talk import Completion

    return _talk(Completion(options=options), target, with_model(model, engine))


def _talk(about: "Chat | Completion", target: TargetOptions, engine: EngineConfig) -> int:
    from functools import partial

    from ..log import configure_logging
    from .screen import Screen
    from .talk import Talk, Told, ask_server, first_model
    from .target import reach

    configure_logging("warning")
    with reach(target, engine) as server:

        def ask(path: str, body: dict[str, object], told: Told) -> None:
            server.call(partial(ask_server, path=path, body=body, told=told))

        name = about.options.model_name or server.call(first_model)
        try:
            return Talk(about=about, model=name, ask=ask, screen=Screen()).run()
        except BrokenPipeError:  # The reader of our answers has gone; so does the answer, with the portal.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
