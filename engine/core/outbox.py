"""What there is to say about requests, gathered until the loop takes it as one `StepEvents`."""

from .events import Admitted, Finished, Preempted, StepEvents
from .ids import RequestId, TokenId
from .logprobs import PromptLogprobs, TokenLogprobs


class Outbox:
    """Columns that grow during a step. Order within each is the order of happening."""

    def __init__(self) -> None:
        self.preempted: list[Preempted] = []
        self.admitted: list[Admitted] = []
        self.chunks: list[tuple[RequestId, int]] = []
        self.requests: list[RequestId] = []
        self.token_ids: list[TokenId] = []
        self.choices: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = []
        self.prompt_logprobs: list[tuple[RequestId, PromptLogprobs]] = []
        self.finished: list[Finished] = []

    def token(self, request: RequestId, token: TokenId, choice: int, logprobs: TokenLogprobs | None = None) -> None:
        if logprobs is not None:  # the column begins with the first that there is
            self.logprobs += [None] * (len(self.requests) - len(self.logprobs))
            self.logprobs.append(logprobs)
        self.requests.append(request)
        self.token_ids.append(token)
        self.choices.append(choice)

    def take(self, step: int) -> StepEvents:
        """All of it, and start anew."""
        if self.logprobs:
            self.logprobs += [None] * (len(self.requests) - len(self.logprobs))
        events = StepEvents(
            step=step,
            preempted=tuple(self.preempted),
            admitted=tuple(self.admitted),
            chunks=tuple(self.chunks),
            requests=tuple(self.requests),
            token_ids=tuple(self.token_ids),
            choices=tuple(self.choices),
            logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
            finished=tuple(self.finished),
        )
        columns = (self.requests, self.token_ids, self.choices, self.logprobs)
        for column in (self.preempted, self.admitted, self.chunks, self.prompt_logprobs, self.finished, *columns):
            column.clear()
        return events
