"""Reads a Python literal character by character and says it as JSON: strings, numbers, True, False, None, lists, tuples
and dictionaries; JSON's own spellings too.

Pure. It keeps the brackets that are open, and of the text no more than the number or name under way.
"""

import json
import re

from .json_value import MAX_DEPTH, SPACE, Step

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMERIC = frozenset("0123456789+-.eE")
_MOST_WORD = 512
"""Characters of a number or a name."""
_NAMES = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_ESCAPES = {**dict.fromkeys("nrtbf", ""), "\\": "", '"': "", "'": "'", "/": "/", "a": "\\u0007", "v": "\\u000b"}
"""What JSON writes for it; empty: the same."""
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_HEX = frozenset("0123456789abcdefABCDEF")


class PythonValue:
    """One value. After anything but MORE it is not used any more; `take_json` gives the rest then too."""

    def __init__(self) -> None:
        self._json: list[str] = []
        self._closers: list[str] = []
        self._expects = "value"
        """value, item (or the end), key (or the end), colon, comma (or the end)."""
        self._has_comma = False
        """One is due in front of the next item."""
        self._quote = ""
        self._is_key = False
        self._escape: str | None = None
        """Inside a string: the characters since a backslash."""
        self._word = ""
        """A number or a name."""

    def take_json(self) -> str:
        """What has come since the last call, as JSON."""
        text = "".join(self._json)
        self._json.clear()
        return text

    def take(self, character: str) -> Step:
        """One character more."""
        if self._quote:
            return self._take_in_string(character)
        if self._word:
            if character in _NUMERIC or character.isalnum():
                if len(self._word) >= _MOST_WORD:
                    self._json.append(self._word)
                    return Step.BAD
                self._word += character
                return Step.MORE
            if not self._end_word():
                return Step.BAD  # as it is: somebody will read what the model meant
            if not self._closers:
                return Step.BEFORE
        return self._take_between(character)

    def _take_in_string(self, character: str) -> Step:
        if self._escape is not None:
            return self._take_escape(character)
        if character == "\\":
            self._escape = ""
        elif character == self._quote:
            self._quote = ""
            self._json.append('"')
            if not self._is_key:
                return self._end_value()
            self._expects = "colon"
        else:
            self._json.append(json.dumps(character, ensure_ascii=False)[1:-1])
        return Step.MORE

    def _take_escape(self, character: str) -> Step:
        escape, self._escape = f"{self._escape}{character}", None
        if escape[0] in "ux":
            if len(escape) > 1 and character not in _HEX:
                self._json.append("\\" + escape[:-1])
                return Step.BAD
            if len(escape) < (5 if escape[0] == "u" else 3):
                self._escape = escape
            else:
                self._json.append("\\u" + escape[1:].rjust(4, "0"))
        elif escape in _ESCAPES:
            self._json.append(_ESCAPES[escape] or "\\" + escape)
        elif escape != "\n":  # a line that goes on; what is no escape keeps its backslash
            self._json.append(json.dumps("\\" + escape, ensure_ascii=False)[1:-1])
        return Step.MORE

    def _take_between(self, character: str) -> Step:
        expects = self._expects
        if character in SPACE:
            return Step.MORE
        if character in "])}" and expects in ("item", "key", "comma"):
            if not self._closers or self._closers.pop() != character:
                return Step.BAD
            self._json.append("]" if character == ")" else character)
            self._has_comma = False
            return self._end_value()
        if expects in ("value", "item", "key"):
            return self._begin(character)
        if expects == "colon" and character == ":":
            self._expects = "value"
            self._json.append(": ")
        elif expects == "comma" and character == ",":
            self._expects = "key" if self._closers[-1] == "}" else "item"
            self._has_comma = True
        else:
            return Step.BAD
        return Step.MORE

    def _begin(self, character: str) -> Step:
        is_key = self._expects == "key"
        if is_key and character not in "\"'":
            return Step.BAD
        if self._has_comma:
            self._json.append(", ")
            self._has_comma = False
        if character in "\"'":
            self._quote, self._is_key = character, is_key
            self._json.append('"')
        elif character in _CLOSERS and len(self._closers) < MAX_DEPTH:
            self._closers.append(_CLOSERS[character])
            self._expects = "key" if character == "{" else "item"
            self._json.append("[" if character == "(" else character)
        elif character == "-" or character.isalnum():
            self._word = character
        else:
            return Step.BAD
        return Step.MORE

    def _end_word(self) -> bool:
        word, self._word = self._word, ""
        self._json.append(_NAMES.get(word, word))
        if not (word in _NAMES or _NUMBER.fullmatch(word)):
            return False
        self._end_value()
        return True

    def _end_value(self) -> Step:
        self._expects = "comma"
        return Step.MORE if self._closers else Step.DONE
