"""What a sequence that joins comes to as a row of the batch: its columns."""

from typing import Any

import numpy as np

from ..engine.core.plan import JoinedSequence, choice_seed

COLUMNS = np.dtype(
    [
        ("computed", np.int64),
        ("known", np.int64),
        ("last_token", np.int64),
        ("num_prompt_tokens", np.int64),
        ("min_tokens", np.int64),
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("seed", np.uint64),
        ("num_samples", np.int64),
        ("num_candidates", np.int64),
        ("num_logprobs", np.int64),
        ("prompt_logprobs_from", np.int64),
    ]
)


def columns_of(joined: JoinedSequence) -> tuple[Any, ...]:
    """In the order of `COLUMNS`."""
    sampling, known = joined.sampling, len(joined.token_ids)
    return (
        joined.num_computed,
        known,
        joined.token_ids[-1],
        joined.num_prompt_tokens,
        sampling.min_tokens if joined.end_token_ids else 0,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        choice_seed(joined.seed, joined.choice) % 2**64,
        joined.num_samples,
        joined.num_candidates,
        (sampling.logprobs or 0) if reports(joined) else -1,
        known if joined.prompt_logprobs_from is None else joined.prompt_logprobs_from,
    )


def reports(joined: JoinedSequence) -> bool:
    """Whether it reports the log-probabilities of its tokens; a beam's candidates have them."""
    return joined.sampling.logprobs is not None and not joined.num_candidates
