"""The numbers and names that the messages carry, each its own type so that one is not taken for another."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""What a client calls a request: unique among the requests that are open."""

SequenceId = NewType("SequenceId", int)
"""One run of tokens inside the engine. A number is never used twice in the life of an engine."""

TokenId = NewType("TokenId", int)
"""An index into the vocabulary, `0 <= id < vocab_size`."""
