"""A device that reports log-probabilities to whoever asks: made up, but a function of the token and its position."""

from typing import Any

import attrs

from triolet.engine.core.ids import SequenceId, TokenId
from triolet.engine.core.logprobs import PromptLogprobs, TokenLogprobs
from triolet.engine.core.plan import JoinedSequence, StepPlan, StepResult

from .memory import MemoryDevice


def entry(token: int, position: int) -> TokenLogprobs:
    """What is said of a token at a position."""
    return TokenLogprobs(token_id=TokenId(token), logprob=-position / 8, rank=position)


class ReportingMemory(MemoryDevice):
    """Reports as part 7 of a plan's order and `StepResult.logprobs` say."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._joined: dict[SequenceId, JoinedSequence] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        self._joined |= {joined.sequence: joined for joined in plan.joined}
        before = {joined.sequence: joined.num_computed for joined in plan.joined}
        before |= {sequence: row.computed for sequence, row in self.rows.items()}
        result = super().execute(plan)
        said: list[tuple[SequenceId, PromptLogprobs]] = []
        for sequence, row in self.rows.items():
            joined = self._joined[sequence]
            if joined.prompt_logprobs_from is None:
                continue
            first = max(joined.prompt_logprobs_from, before[sequence] + 1)
            after = min(row.computed + 1, joined.num_prompt_tokens)
            if first < after:
                said.append((sequence, (first, tuple(entry(row.tokens[i], i) for i in range(first, after)))))
        entries = tuple(
            entry(token, len(self.rows[sequence].tokens) - 1)
            if self._joined[sequence].sampling.logprobs is not None
            else None
            for sequence, token in zip(result.sequences, result.token_ids, strict=True)
        )
        return attrs.evolve(result, logprobs=entries if any(entries) else (), prompt_logprobs=tuple(said))
