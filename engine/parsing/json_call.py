"""A call written as a JSON object: `{"name": "f", "arguments": {…}}`, in any order, other keys passed over.

Pure. Until the name is known and the arguments begin nothing is said, and the text is kept, for it may be no call
after all; from then on it is one, and its arguments are passed on as they come.
"""

import json
from collections.abc import Container

from .calls import MAX_HELD, Emitter
from .json_value import SPACE, JsonValue, Step

ARGUMENT_KEYS = ("arguments", "parameters")


class JsonCall:
    """One object. After DONE or BAD it is not used any more."""

    def __init__(self, out: Emitter, names: Container[str], *, held: str, needs_arguments: bool = False) -> None:
        """`held`: what stood before the object, and is content where it is no call. `needs_arguments`: an object
        without them is no call."""
        self._out = out
        self._names = names
        self._held = [held]
        self._num_held = 0
        self._needs_arguments = needs_arguments
        self._place = "open"
        """What comes next: open (the brace), first key, key, colon, value, comma; or inside: in key, in value."""
        self._value = JsonValue()
        self._text: list[str] = []
        """Of a key or a name."""
        self._key = ""
        self._name: str | None = None
        self._arguments: list[str] = []
        """That have not been said: because the name comes after them, or until the end of a piece."""
        self._has_arguments = False
        self.is_call = False
        """It has been said to begin."""
        self.is_complete = False
        """The arguments are."""

    def push(self, text: str) -> tuple[Step, int]:
        """How many characters were taken. BAD: the next one belongs to no call; unless it `is_call`, all that was
        taken has become content."""
        for place, character in enumerate(text):
            step = self._take(character)
            if step is Step.BAD or self._num_held >= MAX_HELD:
                self._say()
                if not self.is_call:
                    self._out.content("".join(self._held))
                return Step.BAD, place
            if not self.is_call:
                self._held.append(character)
                self._num_held += 1
            if step is Step.DONE:
                self._say()
                return Step.DONE, place + 1
        self._say()
        return Step.MORE, len(text)

    def _say(self) -> None:
        """The arguments that have come, once there is a call that they belong to."""
        if self.is_call and self._arguments:
            self._out.arguments("".join(self._arguments))
            self._arguments.clear()

    def finish(self) -> None:
        """The text is over."""
        if not self.is_call:
            self._out.content("".join(self._held))

    def _take(self, character: str) -> Step:
        if self._place in ("in key", "in value"):
            step = self._value.take(character)
            if step in (Step.DONE, Step.MORE):
                self._keep(character)
            if step is Step.DONE:
                return Step.MORE if self._end_part() else Step.BAD
            if step is not Step.BEFORE:
                return step
            if not self._end_part():
                return Step.BAD
        if character in SPACE:
            return Step.MORE
        return self._take_between(character)

    def _take_between(self, character: str) -> Step:
        match self._place, character:
            case "open", "{":
                self._place = "first key"
            case (("first key" | "key"), '"'):
                self._place, self._value, self._text = "in key", JsonValue(), ['"']
                self._value.take(character)
            case "colon", ":":
                self._place = "value"
            case "comma", ",":
                self._place = "key"
            case (("first key" | "comma"), "}"):
                return self._close()
            case "value", _:
                return self._begin_value(character)
            case _:
                return Step.BAD
        return Step.MORE

    def _begin_value(self, character: str) -> Step:
        self._value, self._text = JsonValue(), []
        if self._key in ARGUMENT_KEYS and character != "{":
            return Step.BAD
        step = self._value.take(character)
        if step is Step.MORE:
            self._place = "in value"
            if self._key in ARGUMENT_KEYS and self._name is not None:
                self._start()
            self._keep(character)
        return step

    def _start(self) -> None:
        assert self._name is not None
        self._out.call(self._name)
        self.is_call = True
        self._held.clear()
        self._num_held = 0

    def _keep(self, character: str) -> None:
        if self._place == "in key" or self._key == "name":
            self._text.append(character)
        elif self._key in ARGUMENT_KEYS:
            self._arguments.append(character)

    def _end_part(self) -> bool:
        """A key or a value is complete."""
        if self._place == "in key":
            self._key = json.loads("".join(self._text))
            self._place = "colon"
            # Nobody says a thing twice.
            return not (self._key == "name" and self._name is not None) and not (
                self._key in ARGUMENT_KEYS and self._has_arguments
            )
        self._place = "comma"
        if self._key in ARGUMENT_KEYS:
            self._has_arguments = True
            self.is_complete = self.is_call
        elif self._key == "name":
            name = json.loads("".join(self._text))
            if not isinstance(name, str) or name not in self._names:
                return False
            self._name = name
            if self._has_arguments:
                self._start()
                self.is_complete = True
        return True

    def _close(self) -> Step:
        if self._name is None or (self._needs_arguments and not self._has_arguments):
            return Step.BAD
        if not self.is_call:
            self._start()
            self._arguments.append("{}")
        self.is_complete = True
        return Step.DONE
