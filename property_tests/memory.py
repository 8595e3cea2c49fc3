"""The readable memory of law S8: a device that can be caught reading what it should not.

It carries plans out as `engine/core/plan.py` orders, over an array that holds (token, position) where a real device
holds K and V. A sampled token is a hash of what the device gathers *through the block table*, so a wrong table entry, a
lost copy, a stale prefix or a slot written by somebody else changes the text of a request, and the law that each
request's tokens equal those of the request run alone shows it.

`alone` is the naive model beside it: the same hash, over a plain list of tokens, without blocks, batches or time.
"""

import zlib
from array import array
from collections.abc import Sequence

import attrs

from triolet.engine.core.ids import SequenceId, TokenId
from triolet.engine.core.plan import JoinedSequence, StepPlan, StepResult, choice_seed
from triolet.engine.core.pooling import Pooling

Cell = tuple[int, int]


def digest_of(tokens: Sequence[int], windows: Sequence[int | None], seed: int) -> int:
    """What follows from `tokens`, as each group of layers sees them: all of them, or the last `window`."""
    digest = seed & 0xFFFFFFFF
    for window in windows:
        start = 0 if window is None else max(0, len(tokens) - window)
        seen = array("q", tokens[start:])
        seen.extend(range(start, len(tokens)))
        digest = zlib.crc32(seen.tobytes(), digest)
    return digest


def best_tokens(digest: int, vocab_size: int, count: int) -> tuple[tuple[TokenId, ...], tuple[float, ...]]:
    """The `count` most likely next tokens and their log-probabilities: made up, but a function of the digest."""
    scored = sorted((zlib.crc32(bytes([token]), digest) % 997, token) for token in range(vocab_size))[:count]
    return tuple(TokenId(token) for _, token in scored), tuple(-score / 100 for score, _ in scored)


def vector_of(digests: Sequence[int]) -> bytes:
    """A vector that shows what was read for it, at every position that it is made of."""
    return array("Q", digests).tobytes()


def alone_as_vector(
    prompt: Sequence[int], *, pooling: Pooling, seed: int, windows: Sequence[int | None] = (None,)
) -> bytes:
    """The vector of a request when nothing else exists."""
    first = 1 if pooling.needs_every_state else len(prompt)
    return vector_of([digest_of(prompt[:end], windows, seed) for end in range(first, len(prompt) + 1)])


def alone_by_beams(
    prompt: Sequence[int],
    *,
    num_beams: int,
    num_tokens: int,
    end_tokens: frozenset[int],
    min_tokens: int,
    length_penalty: float,
    seed: int,
    vocab_size: int,
    windows: Sequence[int | None] = (None,),
) -> list[tuple[list[int], float]]:
    """Beam search over plain lists: (answer without its end token, score), best first."""
    width = max(2, 1 + len(end_tokens)) * num_beams
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[list[int], float]] = []
    for made in range(1, num_tokens + 1):
        grown = []
        for place, (log_probability, given) in enumerate(beams):
            digest = digest_of([*prompt, *given], windows, seed)
            for token, extra in zip(*best_tokens(digest, vocab_size, width), strict=True):
                grown.append((-(log_probability + extra), place, token, given))
        beams = []
        for rank, (negative, _, token, given) in enumerate(sorted(grown)[:width]):
            ends = token in end_tokens and made >= min_tokens
            if not ends and made < num_tokens:
                beams.append((-negative, [*given, token]))
            elif rank < num_beams:
                done.append((given if token in end_tokens else [*given, token], -negative / made**length_penalty))
        done = sorted(done, key=lambda answer: -answer[1])[:num_beams]
        beams = beams[:num_beams]
        if not beams or (len(done) == num_beams and beams[0][0] / made**length_penalty <= done[-1][1]):
            break
    return done


MOST_FORCED = 3
"""Small, so that chains of forced tokens are cut."""


def forced_after(given: Sequence[int], vocab_size: int) -> TokenId | None:
    """The grammar that every grammar is here: what must follow an answer's tokens; None: anything may."""
    return TokenId((5 * given[-1] + 2) % vocab_size) if given and given[-1] % 3 == 1 else None


def alone(
    prompt: Sequence[int],
    *,
    num_tokens: int,
    end_tokens: frozenset[int],
    min_tokens: int = 0,
    seed: int,
    vocab_size: int,
    windows: Sequence[int | None] = (None,),
    grammar: bool = False,
) -> list[int]:
    """What a request gives when nothing else exists: at most `num_tokens` tokens, the end token not listed."""
    tokens = list(prompt)
    given: list[int] = []
    for made in range(1, num_tokens + 1):
        token = forced_after(given, vocab_size) if grammar else None
        if token is None:
            token = TokenId(digest_of(tokens, windows, seed) % vocab_size)
        if token in end_tokens and (made >= min_tokens or grammar):
            break
        tokens.append(token)
        given.append(token)
    return given


@attrs.define
class Row:
    """What the device keeps of one sequence."""

    tokens: list[TokenId]
    computed: int
    tables: list[list[int | None]]
    seed: int
    choice: int
    num_samples: int
    num_candidates: int
    pooling: Pooling | None
    num_prompt_tokens: int
    grammar: bool
    pooled: list[int] = attrs.field(factory=list)
    """What has been read at each position so far, where every state is wanted."""

    @classmethod
    def of(cls, joined: JoinedSequence) -> "Row":
        tables: list[list[int | None]] = [list(table) for table in joined.block_tables]
        return cls(
            tokens=list(joined.token_ids),
            computed=joined.num_computed,
            tables=tables,
            seed=joined.seed,
            choice=joined.choice,
            num_samples=joined.num_samples,
            num_candidates=joined.num_candidates,
            pooling=joined.pooling,
            num_prompt_tokens=joined.num_prompt_tokens,
            grammar=joined.sampling.grammar is not None,
        )


class MemoryDevice:
    """Executes plans over readable memory; asserts what no device could survive (K3, K4, S1)."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        windows: Sequence[int | None] = (None,),
        max_num_seqs: int = 2**31,
        max_num_batched_tokens: int = 2**31,
        jump_forward: bool = True,
    ) -> None:
        self._jumps = jump_forward
        self.rows: dict[SequenceId, Row] = {}
        self.num_computed_tokens = 0
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._windows = windows
        self.limits = (max_num_seqs, max_num_batched_tokens)
        self._memory: list[list[Cell | None]] = [[None] * block_size for _ in range(num_blocks)]

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry one plan out, in the order of its parts."""
        for sequence in plan.left:
            del self.rows[sequence]
        for joined in plan.joined:
            assert joined.sequence not in self.rows, "a sequence joins twice"
            self.rows[joined.sequence] = Row.of(joined)
        self._apply_writes(plan)
        self._copy(plan)
        chunks = dict(zip(plan.chunk_sequences, plan.chunk_lengths, strict=True))
        lengths = {sequence: chunks.get(sequence, 1) for sequence in self.rows}
        assert len(self.rows) == plan.num_sequences, "S1: device and scheduler count the batch alike"
        assert len(self.rows) <= self.limits[0], "S1: the sequence cap holds"
        assert sum(lengths.values()) == plan.num_tokens, "S1: device and scheduler count the tokens alike"
        assert plan.num_tokens <= self.limits[1], "S1: the token budget holds"
        self.num_computed_tokens += plan.num_tokens
        self._write(lengths)
        return self._sample(plan.step, lengths)

    def reset(self) -> None:
        """Forget the batch; the memory stays."""
        self.rows.clear()

    def _apply_writes(self, plan: StepPlan) -> None:
        columns = (plan.write_sequences, plan.write_groups, plan.write_indexes, plan.write_blocks)
        for sequence, group, index, block in zip(*columns, strict=True):
            table = self.rows[sequence].tables[group]
            assert index <= len(table), "a table grows at its end"
            table[index : index + 1] = [block]

    def _copy(self, plan: StepPlan) -> None:
        read = [list(self._memory[source]) for source in plan.copy_sources]
        assert len(set(plan.copy_targets)) == len(plan.copy_targets), "a block is the target of one copy"
        for target, cells in zip(plan.copy_targets, read, strict=True):
            self._memory[target] = cells

    def _write(self, lengths: dict[SequenceId, int]) -> None:
        owners = self._owners()
        written: set[tuple[int, int]] = set()
        for sequence, length in lengths.items():
            row = self.rows[sequence]
            assert row.computed + length <= len(row.tokens), "only known tokens can be computed"
            for position in range(row.computed, row.computed + length):
                for table in row.tables:
                    block = table[position // self._block_size]
                    assert block is not None, "a token to be computed has a block"
                    slot = (block, position % self._block_size)
                    assert slot not in written, "K4: a slot is written by one sequence"
                    assert owners[block] == 1, "K3: a shared block is never written"
                    written.add(slot)
                    self._memory[block][slot[1]] = (row.tokens[position], position)
                if row.pooling is not None and row.pooling.needs_every_state:
                    row.pooled.append(self._gather(row, row.seed, position + 1))
            row.computed += length

    def _owners(self) -> dict[int, int]:
        """How many sequences can still see each block; the device is not told when a window leaves one behind."""
        count: dict[int, int] = {}
        for row in self.rows.values():
            for window, table in zip(self._windows, row.tables, strict=True):
                first = 0 if window is None else max(0, row.computed + 1 - window) // self._block_size
                for block in table[first:]:
                    if block is not None:
                        count[block] = count.get(block, 0) + 1
        return count

    def _sample(self, step: int, lengths: dict[SequenceId, int]) -> StepResult:
        sequences: list[SequenceId] = []
        tokens: list[TokenId] = []
        candidates: list[tuple[SequenceId, tuple[TokenId, ...], tuple[float, ...]]] = []
        vectors: list[tuple[SequenceId, bytes]] = []
        forced: list[tuple[SequenceId, tuple[TokenId, ...]]] = []
        for sequence, length in lengths.items():
            row = self.rows[sequence]
            if not length or row.computed < len(row.tokens):
                continue
            if row.pooling is not None:
                digests = row.pooled if row.pooling.needs_every_state else [self._gather(row, row.seed)]
                vectors.append((sequence, vector_of(digests)))
            elif row.num_candidates:
                digest = self._gather(row, row.seed)
                candidates.append((sequence, *best_tokens(digest, self._vocab_size, row.num_candidates)))
            else:
                for choice in range(row.choice, row.choice + row.num_samples):
                    sequences.append(sequence)
                    digest = self._gather(row, choice_seed(row.seed, choice))
                    must = self._forced(row)
                    tokens.append(TokenId(digest % self._vocab_size) if must is None else must)
                row.tokens.append(tokens[len(tokens) - row.num_samples])
                row.num_samples = 1
                if more := self._jump(row):
                    forced.append((sequence, more))
        return StepResult(
            step=step,
            sequences=tuple(sequences),
            token_ids=tuple(tokens),
            candidates=tuple(candidates),
            vectors=tuple(vectors),
            forced=tuple(forced),
        )

    def _forced(self, row: Row) -> TokenId | None:
        return forced_after(row.tokens[row.num_prompt_tokens :], self._vocab_size) if row.grammar else None

    def _jump(self, row: Row) -> tuple[TokenId, ...]:
        """Append what must come next."""
        forced: list[TokenId] = []
        while self._jumps and len(forced) < MOST_FORCED and (token := self._forced(row)) is not None:
            row.tokens.append(token)
            forced.append(token)
        return tuple(forced)

    def _gather(self, row: Row, seed: int, end: int | None = None) -> int:
        """The digest of what stands in the blocks up to `end`; every group reads no further back than its window."""
        end = row.computed if end is None else end
        digest = seed & 0xFFFFFFFF
        for window, table in zip(self._windows, row.tables, strict=True):
            start = 0 if window is None else max(0, end - window)
            tokens = array("q")
            positions = array("q")
            for position in range(start, end):
                block = table[position // self._block_size]
                assert block is not None, "K12: what the window still sees has a block"
                cell = self._memory[block][position % self._block_size]
                assert cell is not None, "a slot is read before it is written"
                tokens.append(cell[0])
                positions.append(cell[1])
            digest = zlib.crc32(tokens.tobytes() + positions.tobytes(), digest)
        return digest
