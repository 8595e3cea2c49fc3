"""How likely a token was: what a request gets for each token when it asks for `logprobs` or `prompt_logprobs`."""

import attrs

from .ids import TokenId


@attrs.frozen(kw_only=True)
class TokenLogprobs:
    """One token and its rivals, under the softmax of the model's own logits: without temperature, penalty or mask."""

    token_id: TokenId
    logprob: float
    """Natural logarithm."""
    rank: int
    """1 for the most likely token: one more than there are more likely ones."""
    top_token_ids: tuple[TokenId, ...] = ()
    """As many of the most likely tokens as were asked for, most likely first, ties by lowest id."""
    top_logprobs: tuple[float, ...] = ()
    """Theirs, in the same order."""


PromptLogprobs = tuple[int, tuple[TokenLogprobs, ...]]
"""The position of the first, and one for each prompt token from there on. A prompt's first token has none."""
