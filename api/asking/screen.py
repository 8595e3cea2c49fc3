"""Where a conversation is seen: lines come in from a terminal or a pipe, answers go out to one.

A terminal gets no control character that a model wrote: only what we draw ourselves moves its cursor or its colours.
A pipe gets the answer's text as it is. Notes and errors go to stderr. Synchronous; a write waits for its reader.
"""

import sys
from typing import TextIO

PROMPT = "> "

_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {127: "\u2421"} | dict.fromkeys(range(128, 160), "�")


def visible(text: str) -> str:
    """The text with signs in the place of control characters."""
    return text.translate(_CONTROLS)


class Screen:
    """Three streams; those of the process when none are given."""

    def __init__(self, lines: TextIO | None = None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._in = lines if lines is not None else _lenient(sys.stdin)
        self._out = out if out is not None else _lenient(sys.stdout)
        self._err = err if err is not None else _lenient(sys.stderr)
        self.asks = self._in.isatty()
        """Somebody sits there and types."""
        self._shows = self._out.isatty()
        self._notes_shown = self._err.isatty()
        self._reasoning = False
        if self.asks and self._shows:
            import readline  # noqa: F401  # input() then edits lines, and remembers them while this process lives

    def read_line(self) -> str:
        """The next line, without its end. Raises EOFError, and KeyboardInterrupt."""
        if self.asks and self._shows:
            return input(PROMPT)
        if self.asks:
            print(PROMPT, end="", file=self._err, flush=True)
        line = self._in.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def read_all(self) -> str:
        """All that comes until the end of the input."""
        return self._in.read()

    def say(self, text: str) -> None:
        """A piece of an answer."""
        self._end_reasoning()
        self._write(text)

    def think(self, text: str) -> None:
        """A piece of what a model says before its answer: dim on a terminal, and in a pipe not at all."""
        if self._shows:
            if not self._reasoning:
                self._out.write("\x1b[2m")
                self._reasoning = True
            self._write(text)

    def end_answer(self) -> None:
        """The answer's last line is over."""
        self._end_reasoning()
        print(file=self._out, flush=True)

    def note(self, text: str) -> None:
        """A remark of ours."""
        self._end_reasoning()
        text = visible(text)
        print(f"\x1b[2m{text}\x1b[0m" if self._notes_shown else text, file=self._err, flush=True)

    def complain(self, message: str) -> None:
        """An error, as one line."""
        self._end_reasoning()
        print(f"triolet: {visible(' '.join(message.split()))}", file=self._err, flush=True)

    def _write(self, text: str) -> None:
        self._out.write(visible(text) if self._shows else text)
        self._out.flush()

    def _end_reasoning(self) -> None:
        if self._reasoning:
            self._reasoning = False
            self._out.write("\x1b[0m\n")


def _lenient(stream: TextIO) -> TextIO:
    """What cannot be read or written in the stream's encoding becomes a sign; it never ends a conversation."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return stream
