"""Markers in a text that comes in pieces.

Pure. A piece costs its own length and that of the markers, which are short.
"""


class MarkerSearch:
    """Finds the first of a few markers, and never shows the beginning of one."""

    __slots__ = ("_held", "_longest", "_markers")

    def __init__(self, *markers: str) -> None:
        """None of them may be a part of another: the one that begins first is then complete first, however the text is
        cut."""
        if any(one in other for one in markers for other in markers if one is not other):
            raise AssertionError(f"of the markers {markers} one is a part of another")
        self._markers = markers
        self._longest = max(map(len, markers))
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None, str]:
        """What may be shown, the marker behind it or None, and what comes after the marker, not looked at yet."""
        text = self._held + text
        found = [(place, marker) for marker in self._markers if (place := text.find(marker)) >= 0]
        if found:
            self._held = ""
            place, marker = min(found)
            return text[:place], marker, text[place + len(marker) :]
        length = self._begun(text)
        self._held = text[len(text) - length :]
        return text[: len(text) - length], None, ""

    def flush(self) -> str:
        """The text is over: what was held back is no marker."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """How many characters at the end could be the beginning of a marker."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(marker.startswith(end) for marker in self._markers):
                return length
        return 0
