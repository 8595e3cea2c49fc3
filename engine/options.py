"""How a request stands among the others: whose it is, how urgent, until when. Its answer does not depend on it.

Pure attrs.
"""

import attrs


@attrs.frozen(kw_only=True)
class RequestOptions:
    """Where a time is given, it is in seconds."""

    priority: int = 0
    """Lower is served first, under the priority policy."""
    fairness_key: str = ""
    """Whose share of the tokens it counts to, under the fair policy."""
    deadline: float | None = None
    """When it is ended with reason `timeout`, whatever it is doing, tokenizing included: a moment of the trio clock."""
    max_queue_time_s: float | None = None
    """It must have been admitted this long after its arrival. Otherwise it ends as an error, Overloaded: it says when
    to come back; nothing has been computed for it."""
    supersede_key: str | None = None
    """A newer request of the same key takes this one's place: this one ends with reason `abort` and stop reason
    `superseded`. A newer one that is refused takes nobody's place."""
    extra_keys: tuple[str | int | bytes, ...] = ()
    """Joined into the prefix hash: only requests with equal keys share cached blocks."""
    label: str | None = attrs.field(default=None, eq=False)
    """What its story and its trace call it; None: the request id that `generate` was given. Several may share one."""
    tag: object = attrs.field(default=None, eq=False)
    """Something of the caller's, which the request's story keeps and the engine does not look at."""


DEFAULT_OPTIONS = RequestOptions()
