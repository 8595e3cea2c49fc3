"""Stop strings: finds the first one in a text that comes in pieces, and never shows a character of it.

Pure: the standard library only. One Knuth-Morris-Pratt automaton per stop string, so a text of n characters costs
O(n) for each of the few stop strings whatever they look like and however the text is cut; a border table grows only as
far as the text has ever matched, so a huge stop string costs nothing in advance.

Of several stop strings the one that is complete first in the text counts; of those complete at the same character the
longest. How the text was cut into pieces has no influence.
"""

from collections.abc import Sequence


class _Automaton:
    """One stop string and how much of it the end of the text matches."""

    __slots__ = ("borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """The text seen so far ends with `text[:matched]`, and with no longer prefix of it."""
        self.borders: list[int] = []
        """borders[i]: the longest proper prefix of text[: i + 1] that is also its suffix."""

    def step(self, character: str) -> bool:
        """Take one character; True when the stop string is complete."""
        text, matched, borders = self.text, self.matched, self.borders
        while matched and text[matched] != character:
            matched = borders[matched - 1]
        if text[matched] == character:
            matched += 1
            if matched > len(borders):
                self._add_border()
        self.matched = matched
        return matched == len(text)

    def _add_border(self) -> None:
        text, borders, index = self.text, self.borders, len(self.borders)
        border = borders[-1] if borders else 0
        while border and text[border] != text[index]:
            border = borders[border - 1]
        if index and text[border] == text[index]:
            border += 1
        borders.append(border)


class StopMatcher:
    """Takes a text piece by piece and gives back what may be shown.

    What is held back is always the beginning of a stop string, `[shown) [held) `: it is shown once the text goes on
    differently, or by `flush` when the text is over. With `include` the stop string itself is shown too, and nothing is
    held back.
    """

    __slots__ = ("_automata", "_first_characters", "_held_length", "_held_of", "_include")

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        self._include = include
        self._automata = [_Automaton(text) for text in stop]
        self._first_characters = tuple({text[0] for text in stop})
        # The held text is never copied: it is the first `_held_length` characters of `_held_of`.
        self._held_of = ""
        self._held_length = 0

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that ended it, or None.

        After a stop string the shown text is complete: nothing more may be pushed.
        """
        begun = self._held_length or (self._include and any(automaton.matched for automaton in self._automata))
        if not begun and not any(first in text for first in self._first_characters):
            return text, None
        held_of, held_length = self._held_of, self._held_length
        for position, character in enumerate(text):
            complete = [automaton for automaton in self._automata if automaton.step(character)]
            if complete:
                stop = max((automaton.text for automaton in complete), key=len)
                if self._include:
                    return text[: position + 1], stop
                return _cut(held_of, held_length, text, held_length + position + 1 - len(stop)), stop
        if self._include:
            return text, None
        longest = max(self._automata, key=lambda automaton: automaton.matched)
        self._held_of, self._held_length = longest.text, longest.matched
        return _cut(held_of, held_length, text, held_length + len(text) - longest.matched), None

    def flush(self) -> str:
        """The text is over: what was held back turned out not to be a stop string."""
        held, self._held_length = self._held_of[: self._held_length], 0
        for automaton in self._automata:
            automaton.matched = 0
        return held


def _cut(held_of: str, held_length: int, text: str, length: int) -> str:
    """The first `length` characters of `held_of[:held_length] + text`."""
    if length <= held_length:
        return held_of[:length]
    return held_of[:held_length] + text[: length - held_length]
