"""The two hot messages: what the scheduler tells the device to do in a step, and what the device answers.

The device keeps the batch. A plan holds differences only: sequences that left, sequences that joined, entries of block
tables that changed, blocks to copy. Every sequence of the batch computes **one** token (its last known one) unless
`chunk_sequences` names another number for it, so the plan of an unchanged decode is empty columns.

The device carries a plan out in this order, and the plans in the order of their step numbers:

1. forget the sequences of `left`;
2. add the sequences of `joined`, in order, behind those that are there;
3. set the block table entries `(write_sequences[i], write_groups[i], write_indexes[i]) = write_blocks[i]`;
4. copy blocks: read every `copy_sources[i]` before writing any `copy_targets[i]` (copy-on-write, whole blocks);
5. for every sequence of the batch: compute its tokens `[computed, computed + chunk)`, writing K and V of position p
   into slot `p % block_size` of block `table[group][p // block_size]`; then `computed += chunk`;
6. for every sequence whose `computed` has reached its last known token, sample one token, append it to the sequence's
   known tokens, and report it. The draw depends on (seed, position of the new token) alone.
7. for every sequence with `prompt_logprobs_from`: report the log-probabilities of the prompt's tokens from that
   position on, each when the token before it has been computed.

Where the grammar of a sequence leaves no choice of what follows a sampled token, the device may append those tokens too
in part 6, and say so (`StepResult.forced`): they are known, and still to be computed. The next chunk of such a sequence
may then be longer than one token.

A sequence with `pooling` samples nothing in part 6: it reports its vector instead, and rests.

No tensor crosses this boundary, in either direction.
"""

import attrs

from ...kvcache.ids import BlockId
from .ids import SequenceId, TokenId
from .logprobs import PromptLogprobs, TokenLogprobs
from .params import SamplingParams
from .pooling import Pooling


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of a request's answers: the request's own for choice 0. 64-bit signed."""
    mixed = (seed + choice * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return mixed - (1 << 64) if mixed >= 1 << 63 else mixed


@attrs.frozen(kw_only=True)
class JoinedSequence:
    """A sequence that enters the device's batch: new, or back after a preemption, with all that the device must know.

    Positions `[0, num_computed)` have K and V in the blocks; `[num_computed, len(token_ids))` are still to compute.
    """

    sequence: SequenceId
    token_ids: tuple[TokenId, ...]
    """Every known token: the prompt, then what has been generated so far."""
    num_prompt_tokens: int
    num_computed: int
    block_tables: tuple[tuple[BlockId | None, ...], ...]
    """One table for each KV group; None where a sliding window has left the block behind."""
    sampling: SamplingParams
    seed: int
    """The request's seed, chosen by the engine where the client gave none. 64-bit signed."""
    end_token_ids: tuple[TokenId, ...] = ()
    """Tokens that would end the answer: not sampled while fewer than `sampling.min_tokens` are out."""
    choice: int = 0
    """Which of the request's answers it is: its draws use `choice_seed(seed, choice)`."""
    num_samples: int = 1
    """How many tokens to draw when `computed` first reaches the last known token, with the seeds of choices 0, 1, …;
    the sequence goes on with the first of them."""
    num_candidates: int = 0
    """Above 0: draw nothing; report so many of the most likely next tokens instead (`StepResult.candidates`). The
    sequence then rests: the next plan drops it and brings what it became."""
    pooling: Pooling | None = None
    """Draw nothing; report a vector made of the states of all its tokens, or of the last. One that needs every state
    joins with nothing computed. The sequence then rests, and leaves."""
    prompt_logprobs_from: int | None = None
    """The first position of the prompt whose log-probabilities are wanted; None: none are."""


@attrs.frozen(kw_only=True)
class StepPlan:
    """One step of the device; see the module's docstring for the order of its parts."""

    step: int
    """Counts up by one from 1."""
    num_tokens: int
    """Tokens computed in this step, over all sequences."""
    num_sequences: int
    """Sequences in the batch once `left` and `joined` have been applied, resting ones included."""
    left: tuple[SequenceId, ...] = ()
    joined: tuple[JoinedSequence, ...] = ()
    write_sequences: tuple[SequenceId, ...] = ()
    write_groups: tuple[int, ...] = ()
    write_indexes: tuple[int, ...] = ()
    write_blocks: tuple[BlockId, ...] = ()
    copy_sources: tuple[BlockId, ...] = ()
    copy_targets: tuple[BlockId, ...] = ()
    chunk_sequences: tuple[SequenceId, ...] = ()
    chunk_lengths: tuple[int, ...] = ()
    """How many tokens the sequence beside it computes in this step; 0: it rests."""


@attrs.frozen(kw_only=True)
class StepResult:
    """What a step gave: the sampled tokens as two columns, in any order; a sequence that draws several tokens is listed
    as often, in the order of the choices."""

    step: int
    sequences: tuple[SequenceId, ...] = ()
    token_ids: tuple[TokenId, ...] = ()
    candidates: tuple[tuple[SequenceId, tuple[TokenId, ...], tuple[float, ...]], ...] = ()
    """For each sequence with `num_candidates`: the most likely next tokens, most likely first (ties: lowest id first),
    and their natural log-probabilities under the plain softmax. Fewer where the vocabulary has no more."""
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """For each sampled token, where its request asked for them; empty where none of the step did."""
    prompt_logprobs: tuple[tuple[SequenceId, PromptLogprobs], ...] = ()
    """At most one entry for a sequence."""
    vectors: tuple[tuple[SequenceId, bytes], ...] = ()
    """For each sequence with `pooling` whose last token was computed: float32, little-endian."""
    forced: tuple[tuple[SequenceId, tuple[TokenId, ...]], ...] = ()
    """For some of the sequences that sampled: what must follow the token that they go on with."""
    failed: tuple[tuple[SequenceId, str], ...] = ()
    """Sequences whose logits could not be used (not a number), with the reason; they sampled nothing."""
    ruled_out: tuple[SequenceId, ...] = ()
    """Sequences whose logits could be used until their own masks left no token; they sampled nothing."""
    seconds: float = 0.0
    """What the device spent on the step."""
    sample_seconds: float = 0.0
    """Of these, on choosing tokens once the logits were there."""
