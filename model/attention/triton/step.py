"""What the attention kernel is told: which queries and keys belong together, and what a layer asks for.

Imports torch and attrs, not triton, so that the backend's module can be imported where triton is not installed.
"""

import attrs
from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class PagedBatch:
    """Which queries and keys belong together, for `n` sequences. The tensors are int32, on the device."""

    query_starts: Tensor
    """`[n + 1]`: sequence i has the queries `[query_starts[i], query_starts[i + 1])`, the last of its context."""
    context_lengths: Tensor
    """`[n]`: the tokens it has in the cache, these included; 0 for a row of padding."""
    tables: Tensor
    """`[n, width]`, rows apart by any stride: its blocks. Entries that no token in sight lies in mean nothing."""
    max_query_length: int
    """At least the queries of any sequence: a bound that a captured graph keeps."""
    max_context_length: int
    """At least the context of any sequence."""


@attrs.frozen(kw_only=True, eq=False)
class AttentionTerms:
    """What a layer asks for besides the softmax."""

    scale: float
    """Of queries times keys."""
    window: int | None = None
    """Each query sees this many tokens, itself included; None: all before it."""
    soft_cap: float | None = None
    """Scores s become `soft_cap * tanh(s / soft_cap)`."""
    sinks: Tensor | None = None
    """float32 `[num_heads]`: a score without a value that each head's softmax counts in."""
    key_scale: Tensor | None = None
    """float32 `[num_kv_heads]`: what the keys of an fp8 cache are multiplied by; None: 1."""
    value_scale: Tensor | None = None
