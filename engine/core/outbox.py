"""What there is to say about requests, gathered until the loop takes it as one `StepEvents`."""

from .events import Admitted, Finished, StepEvents
from .ids import RequestId, TokenId


class Outbox:
    """Columns that grow during a step. Order within each is the order of happening."""

    def __init__(self) -> None:
        self.admitted: list[Admitted] = []
        self.requests: list[RequestId] = []
        self.token_ids: list[TokenId] = []
        self.choices: list[int] = []
        self.finished: list[Finished] = []

    def token(self, request: RequestId, token: TokenId, choice: int) -> None:
        self.requests.append(request)
        self.token_ids.append(token)
        self.choices.append(choice)

    def take(self, step: int) -> StepEvents:
        """All of it, and start anew."""
        events = StepEvents(
            step=step,
            admitted=tuple(self.admitted),
            requests=tuple(self.requests),
            token_ids=tuple(self.token_ids),
            choices=tuple(self.choices),
            finished=tuple(self.finished),
        )
        for column in (self.admitted, self.requests, self.token_ids, self.choices, self.finished):
            column.clear()
        return events
