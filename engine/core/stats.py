"""The scheduler's counters, for metrics and the log."""

import attrs


@attrs.define
class SchedulerStats:
    """Counters since the start; they only grow."""

    num_preemptions: int = 0
    num_scheduled_tokens: int = 0
    num_steps: int = 0
    prefix_queries: int = 0
    """Tokens of admitted prompts that were looked up in the prefix index."""
    prefix_hits: int = 0
    """Of these, the tokens that were found."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    """Tokens sampled for requests that were still open, and those that a grammar forced."""
    forced_tokens: int = 0
    """Of these, the tokens that a grammar left no choice of: no step was needed to sample them."""
    wasted_tokens: int = 0
    """Tokens sampled for sequences that had ended or were preempted while their step was in flight."""
