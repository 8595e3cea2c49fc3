"""How a request stands among the others: whose it is, how urgent, until when. Its answer does not depend on it.

Pure attrs.
"""

import attrs


@attrs.frozen(kw_only=True)
class RequestOptions:
    """Passed on to the scheduler as it is."""

    priority: int = 0
    """Lower is served first, under the priority policy."""
    fairness_key: str = ""
    """Whose share of the tokens it counts to, under the fair policy."""
    deadline: float | None = None
    """When it is ended with reason `timeout`, whatever it is doing: a moment of the trio clock. One that passes while
    the prompt is tokenized ends the request right after."""
    extra_keys: tuple[str | int | bytes, ...] = ()
    """Joined into the prefix hash: only requests with equal keys share cached blocks."""


DEFAULT_OPTIONS = RequestOptions()
