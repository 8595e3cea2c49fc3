"""How completions are answered: `text_completion`, whole and in chunks. The first prompt's answers come first.

A chunk of a plain stream is built from byte templates made once for a request; only the text is encoded anew.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from .answers import CLOSED, OPEN_CHOICE, Answer, Head, PlainStream, Shape, Usage, closing, finish, usage_of
from .tokens import Spelling, offsets_of

if TYPE_CHECKING:
    from ..engine.stream import Output


@attrs.frozen(kw_only=True)
class Echo:
    """The prompts that stand in front of their answers."""

    texts: tuple[str | None, ...]
    """As they were sent; None for one that came as tokens, or was cut: then its tokens say it."""
    num_choices: int
    """Answers to each."""

    def text(self, index: int) -> str | None:
        return self.texts[index // self.num_choices]


class CompletionFormat(PlainStream):
    """A text delta and the finish reason may share a chunk; an echoed prompt has one of its own."""

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        spelling: Spelling,
        shape: Shape,
        echo: Echo | None = None,
        skip_special_tokens: bool = True,
    ) -> None:
        self._shape = shape
        self._spelling = spelling
        self._echo = echo
        self._skip = skip_special_tokens
        self._head = Head(id=id, object="text_completion", created=created, model=model)
        self._open = self._head.opening()

    def delta(self, answer: Answer, output: "Output") -> bytes:
        if not self._shape.is_plain or self._echo is not None:
            return self._rich_delta(answer, output)
        if not output.text and output.finish_reason is None:
            return b""
        choice = b'{"index":%d,"text":%b' % (answer.index, msgspec.json.encode(output.text))
        if output.finish_reason is None:
            return self._open + choice + OPEN_CHOICE + CLOSED
        return self._open + choice + closing(output, strict=self._shape.strict)

    def usage(self, usage: Usage) -> bytes:
        return self._head.usage(usage)

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        return self._head.body([self._choice(answer) for answer in answers], usage)

    def _choice(self, answer: Answer) -> dict[str, Any]:
        shape = self._shape
        front, prompt_logprobs = self._front(answer)
        logprobs = self._logprobs(answer, answer.token_ids, answer.logprobs)
        more: dict[str, Any] = {}
        if shape.prompt_logprobs:
            more["prompt_logprobs"] = self._spelling.prompt(answer.prompt_logprobs)
        if shape.token_ids:
            more |= {"prompt_token_ids": answer.prompt_token_ids, "token_ids": answer.token_ids}
        return {
            "index": answer.index,
            "text": front + answer.text,
            "logprobs": _joined(prompt_logprobs, logprobs),
            **finish(answer.last, strict=shape.strict),
            **more,
        }

    def _rich_delta(self, answer: Answer, output: "Output") -> bytes:
        shape, events = self._shape, b""
        chunk_usage = {"usage": usage_of([answer])} if shape.usage_on_chunks else {}
        prompt = {"prompt_token_ids": answer.prompt_token_ids} if shape.token_ids and not answer.told else {}
        if not answer.told and self._echo is not None:
            text, logprobs = self._front(answer)
            choice = {"index": answer.index, "text": text, "logprobs": logprobs, "finish_reason": None, **prompt}
            events, prompt = self._head.event(choice, **chunk_usage), {}
        if output.text or output.token_ids or output.finish_reason is not None:
            choice = {
                "index": answer.index,
                "text": output.text,
                "logprobs": self._logprobs(answer, output.token_ids, output.logprobs),
                **finish(output, strict=shape.strict),
                **({"token_ids": output.token_ids} if shape.token_ids else {}),
                **prompt,
            }
            events += self._head.event(choice, **chunk_usage)
        return events

    def _front(self, answer: Answer) -> tuple[str, dict[str, Any] | None]:
        """An echoed prompt, with its log-probabilities where they were asked for; the answer's text goes on behind."""
        if self._echo is None:
            return "", None
        token_ids = answer.prompt_token_ids
        decoder = self._spelling.decoder((), skip_special_tokens=False)
        pieces = [decoder.push((token_id,)) for token_id in token_ids]
        spelled = "".join(pieces) + decoder.flush()
        sent = self._echo.text(answer.index)
        text = spelled if sent is None else sent
        answer.text_offset = len(text)
        if self._shape.num_top is None:
            return text, None
        # What the tokenizer added in front is a token without text.
        place = len(text) - len(spelled) if spelled.endswith(text) else 0
        offsets = []
        for piece in pieces:
            offsets.append(max(0, place))
            place += len(piece)
        entries = answer.prompt_logprobs
        pairs = [
            (token_id, entries[index] if index < len(entries) else None) for index, token_id in enumerate(token_ids)
        ]
        return text, self._spelling.completion(pairs, offsets, self._shape.num_top)

    def _logprobs(self, answer: Answer, token_ids: Sequence[int], entries: Sequence[Any]) -> dict[str, Any] | None:
        if self._shape.num_top is None:
            return None
        if answer.decoder is None:
            answer.decoder = self._spelling.decoder(answer.prompt_token_ids, skip_special_tokens=self._skip)
        offsets, answer.text_offset = offsets_of(token_ids, answer.decoder, answer.text_offset)
        pairs = list(zip(token_ids, entries, strict=False))
        return self._spelling.completion(pairs, offsets[: len(pairs)], self._shape.num_top)


def _joined(front: dict[str, Any] | None, behind: dict[str, Any] | None) -> dict[str, Any] | None:
    if front is None or behind is None:
        return behind
    return {name: front[name] + behind[name] for name in behind}
