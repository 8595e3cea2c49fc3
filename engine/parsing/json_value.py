"""Follows a JSON value character by character, strictly, and says where it ends.

Pure. It keeps the brackets that are open and nothing of the text.
"""

import enum

MAX_DEPTH = 100
"""Brackets within brackets: a reader that recurses takes some hundreds."""

SPACE = " \t\n\r"

_NUMBERS = {
    "-": {"0": "0", "1": "1"},
    "0": {".": ".", "e": "e"},
    "1": {"0": "1", "1": "1", ".": ".", "e": "e"},
    ".": {"0": "f", "1": "f"},
    "f": {"0": "f", "1": "f", "e": "e"},
    "e": {"0": "x", "1": "x", "+": "s"},
    "s": {"0": "x", "1": "x"},
    "x": {"0": "x", "1": "x"},
}
"""What may follow in a number, by classes of characters (`_CLASS`)."""
_CLASS = {"0": "0", "+": "+", "-": "+", ".": ".", "e": "e", "E": "e", **dict.fromkeys("123456789", "1")}
_WHOLE = "01fx"
"""Where a number may end."""
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_HEX = frozenset("0123456789abcdefABCDEF")


class Step(enum.Enum):
    """What became of a character."""

    MORE = enum.auto()
    """It belongs to the value, which goes on."""
    DONE = enum.auto()
    """It ends the value, and belongs to it."""
    BEFORE = enum.auto()
    """The value had ended before it: the character is not taken."""
    BAD = enum.auto()
    """It can belong to no value: the character is not taken."""


class JsonValue:
    """Where one value stands. After anything but MORE it is not used any more."""

    __slots__ = ("_closers", "_expects", "_in_string", "_is_key", "_number", "_rest")

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._expects = "value"
        """Outside of strings and scalars: value, item (a value or the end), first key, key, colon, comma."""
        self._in_string = ""
        """Inside: plain, escape, or how many hexadecimal digits are due."""
        self._is_key = False
        self._number = ""
        self._rest = ""
        """Of a literal."""

    def take(self, character: str) -> Step:
        """One character more."""
        if self._in_string:
            return self._take_in_string(character)
        if self._rest:
            if character != self._rest[0]:
                return Step.BAD
            self._rest = self._rest[1:]
            return Step.MORE if self._rest else self._end_value()
        if self._number:
            following = _NUMBERS[self._number].get(_CLASS.get(character, ""))
            if following is not None:
                self._number = following
                return Step.MORE
            if self._number not in _WHOLE:
                return Step.BAD
            self._number = ""
            if self._end_value() is Step.DONE:
                return Step.BEFORE
        return self._take_between(character)

    def _take_in_string(self, character: str) -> Step:
        state = self._in_string
        if state == "plain":
            if character == '"':
                self._in_string = ""
                if not self._is_key:
                    return self._end_value()
                self._expects = "colon"
            elif character == "\\":
                self._in_string = "escape"
            elif character < " ":
                return Step.BAD
        elif state == "escape":
            if character == "u":
                self._in_string = "4"
            elif character in '"\\/bfnrt':
                self._in_string = "plain"
            else:
                return Step.BAD
        elif character not in _HEX:
            return Step.BAD
        else:
            self._in_string = "plain" if state == "1" else str(int(state) - 1)
        return Step.MORE

    def _take_between(self, character: str) -> Step:
        expects = self._expects
        if character in SPACE:
            return Step.MORE
        if character in "]}" and expects in ("item", "first key", "comma"):
            if not self._closers or self._closers[-1] != character:
                return Step.BAD
            self._closers.pop()
            return self._end_value()
        if expects in ("value", "item"):
            return self._begin(character)
        if expects in ("first key", "key") and character == '"':
            self._in_string, self._is_key = "plain", True
        elif expects == "colon" and character == ":":
            self._expects = "value"
        elif expects == "comma" and character == ",":
            self._expects = "key" if self._closers[-1] == "}" else "value"
        else:
            return Step.BAD
        return Step.MORE

    def _begin(self, character: str) -> Step:
        if character == '"':
            self._in_string, self._is_key = "plain", False
        elif character in "{[" and len(self._closers) < MAX_DEPTH:
            self._closers.append("}" if character == "{" else "]")
            self._expects = "first key" if character == "{" else "item"
        elif character in _LITERALS:
            self._rest = _LITERALS[character][1:]
        elif character == "-" or _CLASS.get(character, "") in ("0", "1"):
            self._number = "-" if character == "-" else _CLASS[character]
        else:
            return Step.BAD
        return Step.MORE

    def _end_value(self) -> Step:
        self._expects = "comma"
        return Step.MORE if self._closers else Step.DONE
