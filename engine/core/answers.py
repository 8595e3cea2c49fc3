"""The answers of requests: what becomes of a token, how one sequence becomes several, and how each ends.

Imports the core and the cache. The scheduler tells it what the device gave; it is the one way out of the engine for a
sequence: blocks back first, then the end is said.
"""

from ...kvcache.manager import KVCacheManager
from .beams import BeamSearch, Candidates
from .events import Finished, FinishReason
from .ids import RequestId, SequenceId, TokenId
from .logprobs import TokenLogprobs
from .outbox import Outbox
from .policy import Policy
from .request import Group, Sequence, State, new_detector
from .running import RunningSet
from .stats import SchedulerStats


class Answers:
    """One scheduler's open requests, from their first token to their last end."""

    def __init__(
        self, *, cache: KVCacheManager, waiting: Policy, running: RunningSet, outbox: Outbox, stats: SchedulerStats
    ) -> None:
        self.groups: dict[RequestId, Group] = {}
        """The open requests."""
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._outbox = outbox
        self._stats = stats
        self._samples: dict[SequenceId, list[tuple[TokenId, TokenLogprobs | None]]] = {}

    def set_policy(self, waiting: Policy) -> None:
        """What waits is in it already."""
        self._waiting = waiting

    def forget_samples(self) -> None:
        """The steps in flight are lost: first tokens that came without their siblings are drawn again."""
        self._samples.clear()

    def accept(self, sequence: Sequence, token: TokenId, logprobs: TokenLogprobs | None) -> None:
        """One more token is known; it may be the last."""
        tokens = sequence.tokens
        if len(tokens) % self._cache.block_size == 0:  # the step wrote the last slot of a block
            self._cache.store(sequence.blocks, tokens, len(tokens))
        self._take(sequence, token, logprobs)

    def force(self, sequence: Sequence, forced: tuple[TokenId, ...]) -> None:
        """Tokens that follow the one it has just sampled: known without being sampled, to be computed as a chunk."""
        for token in forced:
            self._stats.generation_tokens += 1
            self._stats.forced_tokens += 1
            self._take(sequence, token, None)
            if sequence.state is State.ENDED:
                return
        # With steps in flight they may be all but computed: then it goes on as it does.
        if sequence.state is State.DECODING and sequence.num_computed < len(sequence.tokens):
            self._running.move(sequence, State.PREFILLING)
            sequence.jumps = True

    def _take(self, sequence: Sequence, token: TokenId, logprobs: TokenLogprobs | None) -> None:
        tokens, group = sequence.tokens, sequence.group
        params = group.request.params
        tokens.append(token)
        # A grammar lets an end token come only where the answer is complete.
        if token in group.end_tokens and (sequence.num_output_tokens >= params.min_tokens or params.grammar):
            self.end(sequence, FinishReason.STOP, end_token=token, end_logprobs=logprobs)
            return
        self._outbox.token(group.request.id, token, sequence.choice, logprobs)
        if sequence.repetition is not None and sequence.repetition.push(tokens, len(group.request.prompt_token_ids)):
            self.end(sequence, FinishReason.REPETITION)
        elif len(tokens) >= group.most_tokens:
            self.end(sequence, FinishReason.LENGTH)

    def sample(self, sequence: Sequence, token: TokenId, logprobs: TokenLogprobs | None) -> None:
        """One of several first tokens; with the last of them the sequence forks, sharing the partial block too."""
        samples = self._samples.setdefault(sequence.device_id, [])
        samples.append((token, logprobs))
        if len(samples) < sequence.num_slots:
            return
        del self._samples[sequence.device_id]
        sequence.num_slots = 1
        self._running.move(sequence, State.DECODING)
        sequence.limit = sequence.num_computed  # ask the cache before writing: the last block is shared now
        answers = [sequence, *(self._fork(sequence, choice, State.DECODING) for choice in range(1, len(samples)))]
        for answer, sampled in zip(answers, samples, strict=True):
            self.accept(answer, *sampled)

    def _fork(self, sequence: Sequence, choice: int, state: State) -> Sequence:
        """A second sequence with the same past, which shares every block; it joins the batch with the next plan."""
        fork = Sequence(
            group=sequence.group,
            choice=choice,
            blocks=self._cache.fork(sequence.blocks),
            tokens=list(sequence.tokens),
            num_computed=sequence.num_computed,
            limit=sequence.num_computed,
            repetition=new_detector(sequence.request),
        )
        sequence.group.sequences.append(fork)
        self._running.enter(fork, state)
        return fork

    def take_candidates(self, beam: Sequence, candidates: Candidates) -> None:
        """A beam has reported; once all have, the best continuations become the beams of the next round."""
        search = beam.group.beams
        if search is None:
            raise AssertionError(f"{beam.request.id} searches no beams")
        self._stats.generation_tokens += 1
        if not search.report(beam, candidates):
            return
        parents = tuple(beam.group.sequences)
        for parent in parents:
            if len(parent.tokens) % self._cache.block_size == 0:
                self._cache.store(parent.blocks, parent.tokens, len(parent.tokens))
        continuations = search.advance()
        if not continuations:
            self._end_search(beam.group, search)
            return
        beams = []
        for choice, continuation in enumerate(continuations):
            fork = self._fork(continuation.parent, choice, State.PREFILLING)
            fork.tokens.append(continuation.token)
            beams.append(fork)
        # A round may leave fewer beams than the next one makes: together they hold the slots of all.
        beams[0].num_slots = beam.request.params.n - len(beams) + 1
        log_probabilities, said = zip(*((each.log_probability, each.said) for each in continuations), strict=True)
        search.start(beams, log_probabilities, said)
        for parent in parents:  # after the forks, so that the last heir of a block writes it in place
            self._drop(parent)

    def _end_search(self, group: Group, search: BeamSearch) -> None:
        """All at once: the answers' tokens, then their ends, best first."""
        for sequence in tuple(group.sequences):
            self._drop(sequence)
        del self.groups[group.request.id]
        for choice, answer in enumerate(search.answers):
            logprobs = answer.logprobs or (None,) * answer.num_tokens
            for token, said in zip(answer.tokens, logprobs, strict=False):
                self._outbox.token(group.request.id, token, choice, said)
            end = answer.end_token
            finished = Finished(
                request=group.request.id,
                reason=FinishReason.LENGTH if end is None else FinishReason.STOP,
                choice=choice,
                last=choice == len(search.answers) - 1,
                stop_token=end if end in group.request.params.stop_token_ids else None,
                end_token=end,
                end_logprobs=None if end is None else logprobs[-1],
                num_output_tokens=answer.num_tokens,
                score=answer.score,
            )
            self._outbox.finished.append(finished)

    def _drop(self, sequence: Sequence) -> None:
        """Out of its group and out of the running, its blocks back."""
        self._samples.pop(sequence.device_id, None)
        self._running.leave(sequence, State.ENDED)
        self._cache.release(sequence.blocks)
        sequence.group.sequences.remove(sequence)

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        end_token: TokenId | None = None,
        end_logprobs: TokenLogprobs | None = None,
        vector: bytes | None = None,
        message: str | None = None,
        refused: bool = False,
        param: str | None = None,
        never_admitted: bool = False,
    ) -> None:
        """The one way out for good: blocks back, then its end is said."""
        group = sequence.group
        if sequence.state is State.WAITING:
            sequence.state = State.ENDED
            self._waiting.remove(sequence)
            group.sequences.remove(sequence)
        else:
            self._drop(sequence)
        last = not group.sequences
        if last:
            del self.groups[group.request.id]
        finished = Finished(
            request=group.request.id,
            reason=reason,
            choice=sequence.choice,
            last=last,
            stop_token=end_token if end_token in group.request.params.stop_token_ids else None,
            end_token=end_token,
            end_logprobs=end_logprobs,
            num_output_tokens=sequence.num_output_tokens,
            vector=vector,
            message=message,
            refused=refused,
            param=param,
            never_admitted=never_admitted,
        )
        self._outbox.finished.append(finished)
