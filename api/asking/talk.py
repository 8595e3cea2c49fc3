"""`triolet chat` and `triolet complete`: ask, show the answer as it comes, ask again.

    at the prompt      Ctrl-D leaves; Ctrl-C leaves when it follows another one
    in an answer       Ctrl-C closes the request's connection, which ends it at the server; what was said is kept

The loop is synchronous, in the main thread, where Python raises Ctrl-C; it listens for it (`ctrl_c.py`) while it waits
for a line or an answer. Each request runs in the portal's thread, which cancels it when the call is interrupted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs
import trio

from ...engine.core.errors import StartError, TrioletError
from .client import Client, Refused
from .ctrl_c import CtrlC
from .options import AskOptions, ChatOptions, CompleteOptions
from .screen import Screen

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
NOTHING, FAILED, INTERRUPTED = 0, 1, 130


@attrs.define
class Told:
    """One answer, as far as it has come."""

    screen: Screen
    text: str = ""
    started_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int | None = None
    """As the server counts them; it may not."""

    def take(self, event: dict[str, Any]) -> None:
        """Show what an event brings. Raises Refused for one of another shape."""
        try:
            usage = event.get("usage")
            if usage:
                self.num_tokens = int(usage["completion_tokens"])
            for choice in event.get("choices") or ():
                if choice.get("index"):
                    continue  # --extra-body asked for several answers: the first is the conversation's
                delta = choice.get("delta") or choice
                self._show(delta.get("reasoning") or delta.get("reasoning_content") or "", self.screen.think)
                said = delta.get("content") or delta.get("text") or ""
                self.text += said
                self._show(said, self.screen.say)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise Refused("The server sent an event of a shape that is not OpenAI's.") from None

    def _show(self, text: str, show: Callable[[str], None]) -> None:
        if text:
            self.last_s = trio.current_time()
            self.first_s = self.first_s or self.last_s
            show(text)

    @property
    def stats(self) -> str:
        """Time to the first token, tokens, and tokens a second after the first."""
        if self.first_s is None:
            return "nothing was said"
        parts = [f"first token after {1000 * (self.first_s - self.started_s):.0f} ms"]
        if self.num_tokens is not None:
            parts.append(f"{self.num_tokens} tokens")
            seconds = self.last_s - self.first_s
            if self.num_tokens > 1 and seconds > 0:
                parts.append(f"{(self.num_tokens - 1) / seconds:.1f} tok/s")
        return ", ".join(parts)


class Ask(Protocol):
    """Have a body answered at a path: shown in `told` as it comes. Raises TrioletError, and KeyboardInterrupt."""

    def __call__(self, path: str, body: dict[str, Any], told: Told) -> None: ...


async def ask_server(client: Client, path: str, body: dict[str, Any], told: Told) -> None:
    """An `Ask`, in the portal's thread. Cancelled, the connection is closed."""
    told.started_s = trio.current_time()
    async with client.stream(path, body) as events:
        async for event in events:
            told.take(event)


async def first_model(client: Client) -> str:
    """The model that is asked when none is named. Raises StartError."""
    try:
        names = await client.models()
    except TrioletError as error:
        raise StartError(error.message) from None
    if not names:
        raise StartError("The server lists no model; name one with --model-name.")
    return names[0]


@attrs.define(kw_only=True)
class Chat:
    """A conversation: what was said so far, as a chat's messages."""

    path = CHAT
    options: ChatOptions
    messages: list[dict[str, str]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.options.system_prompt is not None:
            self.messages.append({"role": "system", "content": self.options.system_prompt})

    def asked(self, text: str) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": text})
        return {"messages": self.messages}

    def answered(self, text: str) -> None:
        """What was said is kept; a question that nothing was said to was not asked."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()


@attrs.define(kw_only=True)
class Completion:
    """Texts, each for itself."""

    path = COMPLETE
    options: CompleteOptions

    def asked(self, text: str) -> dict[str, Any]:
        return {"prompt": text}

    def answered(self, text: str) -> None: ...


@attrs.define(kw_only=True)
class Talk:
    """Questions and answers, one after the other."""

    about: Chat | Completion
    model: str
    ask: Ask
    screen: Screen
    interrupted: bool = False
    """The last that was heard is a Ctrl-C."""
    ctrl_c: CtrlC = attrs.field(factory=CtrlC)

    @property
    def options(self) -> AskOptions:
        return self.about.options

    def run(self) -> int:
        """Until the input ends, or the one message is answered. The exit status."""
        with self.ctrl_c:
            if self.options.quick is not None:
                quick = self.options.quick
                return self._turn(self._read_all() if quick == "-" else quick)
            if self.screen.asks:
                return self._converse()
            return self._follow()

    def _read_all(self) -> str:
        """A Ctrl-C is the end of the command."""
        return self.ctrl_c.listen(self.screen.read_all)

    def _follow(self) -> int:
        """A pipe: each line is a message of a chat; all of it is the text to complete. The first error is the end."""
        if isinstance(self.about, Completion):
            return self._turn(self._read_all())
        status = NOTHING
        while status == NOTHING and (line := self._next_line()) is not None:
            if line.strip():
                status = self._turn(line)
        return status

    def _converse(self) -> int:
        """A terminal: an error or a Ctrl-C ends one answer, not the conversation."""
        while (line := self._next_line()) is not None:
            if line.strip():
                self._turn(line)
        return NOTHING

    def _next_line(self) -> str | None:
        """None: it is over."""
        while True:
            try:
                line = self.ctrl_c.listen(self.screen.read_line)
            except EOFError:
                if self.screen.asks:
                    self.screen.note("")
                return None
            except KeyboardInterrupt:
                self.screen.note("" if self.interrupted else "\n(Ctrl-C again, or Ctrl-D, leaves)")
                if self.interrupted:
                    return None
                self.interrupted = True
            else:
                self.interrupted = False
                return line

    def _turn(self, text: str) -> int:
        told = Told(self.screen)
        body = {"model": self.model, "stream_options": {"include_usage": True}, **self.about.asked(text)}
        if self.options.max_tokens is not None:
            body["max_tokens"] = self.options.max_tokens
        status = NOTHING
        try:
            self.ctrl_c.listen(partial(self.ask, self.about.path, body | self.options.extra, told))
            self.screen.end_answer()
        except TrioletError as error:
            status = FAILED
            if told.text:
                self.screen.end_answer()
            self.screen.complain(error.message)
        except KeyboardInterrupt:
            status, self.interrupted = INTERRUPTED, True
            self.screen.end_answer()
            self.screen.note("(cancelled)")
        self.about.answered(told.text)
        if self.options.stats and status != FAILED:
            self.screen.note(told.stats)
        return status
