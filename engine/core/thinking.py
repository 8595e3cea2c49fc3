"""How an answer thinks before it speaks: `Thinking`, and `ThinkingTracker`, which follows one answer through it.

Pure. All that is known of an answer follows from its tokens, so it is the same after a preemption, in any batch and in
any chunks. The device asks the tracker what must come; whoever reads the answer asks it which tokens were reasoning.

    [front) [inside: reasoning, its closing mark with it) [over: the answer)
      space, and the opening mark, where the answer may open the reasoning itself
"""

from collections.abc import Callable, Iterable
from typing import Literal

import attrs

Phase = Literal["front", "inside", "over"]


@attrs.frozen(kw_only=True)
class Thinking:
    """The marks around the reasoning, and how long it may be."""

    start: str
    end: str
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    """The closing mark as it is written where the budget is used up."""
    always: bool = False
    """The answer begins with reasoning unless the prompt says that it is over; otherwise it does where the prompt opens
    it, or the answer itself."""
    budget: int | None = None
    """Most tokens of reasoning, the marks not counted; None: no limit."""
    begins: Phase | None = None
    """Where the answer begins; None: the end of the prompt will tell (`behind`)."""

    def behind(self, prompt_end: str) -> "Thinking":
        """The same, its beginning told from the last words of the prompt where it is not known yet."""
        if self.begins is not None:
            return self
        text = prompt_end.rstrip()
        begins: Phase = "inside" if self.always else "front"
        if text.endswith(self.start):
            begins = "inside"
        elif text.endswith(self.end):
            begins = "over"
        return attrs.evolve(self, begins=begins)


class ThinkingTracker:
    """Where one answer stands."""

    __slots__ = ("_end", "_front", "_num_forced", "_start", "_tail", "_texts", "_thinking", "num_tokens", "phase")

    def __init__(self, thinking: Thinking, texts: Callable[[int], bytes], output: Iterable[int] = ()) -> None:
        """`texts` gives what a token adds to a text, nothing for special tokens. `output`: the tokens that there
        are."""
        self._thinking = thinking
        self._texts = texts
        self._start, self._end = thinking.start.encode(), thinking.end.encode()
        self._front = b""
        self._tail = b""
        self._num_forced = 0
        self.phase: Phase = thinking.begins or "front"
        self.num_tokens = 0
        """Of reasoning so far, without marks of a single token."""
        for token in output:
            self.take(token)

    def take(self, token: int) -> Phase:
        """The answer has this token now. The phase that the token belongs to."""
        before = self.phase
        if before == "front":
            self._take_front(token)
            return "inside" if self.phase == "inside" else before
        if before == "inside":
            self._take_inside(token)
        return before

    def forced(self) -> int | None:
        """The only token that may come next; None: the budget leaves the choice free."""
        budget, marks = self._thinking.budget, self._thinking.end_token_ids
        if self.phase != "inside" or budget is None or (self.num_tokens < budget and not self._num_forced):
            return None
        return marks[self._num_forced]

    def opening(self) -> int | None:
        """The token that goes on with the opening mark, where it may still come."""
        if self.phase != "front":
            return None
        marks, begun = self._thinking.start_token_ids, 0
        if self._front:
            begun = next((n for n in range(1, len(marks)) if self._front == b"".join(map(self._texts, marks[:n]))), 0)
            if not begun:
                return None
        return marks[begun]

    def _take_front(self, token: int) -> None:
        if (token,) == self._thinking.start_token_ids and not self._front:
            self.phase = "inside"
            return
        self._front = (self._front + self._texts(token)).lstrip()
        if self._front.startswith(self._start):
            self.phase = "inside"
            self._tail = self._front[len(self._start) :]
        elif not self._start.startswith(self._front):
            self.phase = "over"

    def _take_inside(self, token: int) -> None:
        forced = self.forced()
        marks = self._thinking.end_token_ids
        if (token,) == marks:
            self.phase = "over"
            return
        if (token,) == self._thinking.start_token_ids and not self.num_tokens:
            return  # some templates open the reasoning, and the model does again
        self.num_tokens += forced is None
        text = self._tail + self._texts(token)
        if self._end in text:
            self.phase = "over"
        self._tail = text[1 - len(self._end) :]
        if forced is not None:
            self._num_forced += 1
            if self._num_forced == len(marks):
                self.phase = "over"
