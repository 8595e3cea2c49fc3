"""The device's kept batch: one row for each sequence, columns for what a step needs, changed by a plan's differences.

A row's tokens, as half-open ranges of positions:

    [0, computed)        K and V are in the blocks
    [computed, known)    still to compute: more than one until the sequence first samples, and behind a sampled token
                         that others had to follow
    known                where the next sampled token goes

The columns are numpy arrays on the host; a step of unchanged decodes touches each of them once and makes no object per
sequence. Every broken promise of a plan raises `AssertionError` and says which.
"""

import numpy as np
import numpy.typing as npt

from ..engine.core.ids import SequenceId
from ..engine.core.plan import JoinedSequence, StepPlan, choice_seed
from ..engine.core.pooling import Pooling
from .attention.interface import Int32Array, Int64Array, StepLayout
from .grammar import Grammars
from .row import COLUMNS, columns_of, reports
from .sampling import SamplingRows
from .shaping import Shaper, at_end, shaper_of
from .work import StepWork, slots

__all__ = ["KeptBatch", "StepWork"]


class KeptBatch:
    """Rows stand in no promised order: the place of one that leaves is taken by the last."""

    def __init__(self, *, num_groups: int, block_size: int, num_blocks: int, grammars: Grammars | None = None) -> None:
        self._grammars = grammars
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._row: dict[SequenceId, int] = {}
        self.moves: list[tuple[int, int]] = []
        """(row, the row it was) of those that took another's place in the last plan, in their order."""
        self._joined: list[JoinedSequence] = []
        """As they came, in the order of the rows."""
        self._tokens: list[Int64Array] = []
        """The tokens known when the sequence joined."""
        self._columns = np.zeros(8, COLUMNS)
        self._tables: list[Int32Array] = [np.full((8, 8), -1, np.int32) for _ in range(num_groups)]
        self._waiting = 0
        """Rows whose end tokens may not come yet, or not all: an upper bound, 0 lets a step skip them."""

        self._num_special = 0
        """Rows that joined to draw several tokens, or none and report candidates."""
        self._shapers: list[Shaper | None] = []
        self._num_shaped = 0
        self._num_reporting = 0
        """Rows that report the log-probabilities of their tokens."""
        self._num_scoring = 0
        """Rows that joined to report those of their prompts."""
        self._num_pooling = 0
        """Rows that become a vector."""

    def __len__(self) -> int:
        return len(self._joined)

    def sequence(self, row: int) -> SequenceId:
        return self._joined[row].sequence

    def apply(self, plan: StepPlan) -> None:
        """Parts 1 to 3 of a plan: leave, join, write tables."""
        self.moves.clear()
        for sequence in plan.left:
            self._leave(sequence)
        for joined in plan.joined:
            self._join(joined)
        if len(self) != plan.num_sequences:
            raise AssertionError(f"the plan counts {plan.num_sequences} sequences, the batch has {len(self)}")
        if plan.write_blocks:
            self._write_tables(plan)

    def work(self, plan: StepPlan) -> StepWork | None:
        """What is to be computed (part 5); None if nothing is. Changes nothing."""
        decodes = self._decodes(plan)
        if decodes is not None:
            return decodes
        lengths = self._lengths(plan)
        rows = np.flatnonzero(lengths)
        if not rows.size:
            return None
        lengths = lengths[rows]
        starts, known = self._columns["computed"][rows], self._columns["known"][rows]
        contexts, ends = starts + lengths, np.cumsum(lengths)
        row_of_token = np.repeat(rows, lengths)
        positions = np.arange(ends[-1]) + np.repeat(contexts - ends, lengths)
        samples = contexts == known
        pooled, pooled_tokens = self._pooled(rows, lengths, ends, samples) if self._num_pooling else ((), ends[:0])
        scored, scored_tokens = self._scored(rows, starts, contexts, ends) if self._num_scoring else ((), ends[:0])
        layout = StepLayout(
            query_lengths=lengths,
            context_lengths=contexts,
            tables=tuple(table[rows] for table in self._tables),
            write_slots=self._slots(row_of_token, positions),
        )
        return StepWork(
            rows=rows,
            token_ids=self._token_ids(rows, starts, lengths, ends),
            positions=positions,
            layout=layout,
            sampled_rows=rows[samples],
            sampled_tokens=np.concatenate((ends[samples] - 1, scored_tokens)),
            scored=scored,
            pooled=pooled,
            pooled_tokens=pooled_tokens,
        )

    def _decodes(self, plan: StepPlan) -> StepWork | None:
        """The same where every row computes its last known token, as in most steps; None where that is not so. The
        kernels leave the caches cold, so each array more is felt between two steps."""
        count = len(self)
        if not count or plan.chunk_sequences or plan.num_tokens != count or self._num_pooling or self._num_scoring:
            return None
        columns = self._columns[:count]
        positions, contexts = columns["computed"].copy(), columns["known"].copy()
        if (contexts - positions != 1).any():
            return None
        rows = np.arange(count)
        return StepWork(
            rows=rows,
            token_ids=columns["last_token"].copy(),
            positions=positions,
            layout=StepLayout(
                query_lengths=np.ones(count, np.int64),
                context_lengths=contexts,
                tables=tuple(table[:count] for table in self._tables),
                write_slots=self._slots(rows, positions),
            ),
            sampled_rows=rows,
            sampled_tokens=rows,
        )

    def pooling(self, row: int) -> tuple[Pooling, int]:
        """What a row that is pooled asks for, and how many tokens it has."""
        joined = self._joined[row]
        if joined.pooling is None:
            raise AssertionError(f"sequence {joined.sequence} asks for no vector")
        return joined.pooling, len(joined.token_ids)

    def draws_plainly(self, rows: Int64Array) -> bool:
        """Each of these rows draws one token."""
        if not self._num_special:
            return True
        columns = self._columns[rows]
        return bool(((columns["num_samples"] == 1) & (columns["num_candidates"] == 0)).all())

    def takes_best(self, rows: Int64Array) -> bool:
        """Each of these rows takes the most likely token of its logits as they are, and reports nothing but that. Where
        any row of the batch asks for more, the answer is False."""
        asks = self._num_special or self._num_shaped or self._num_reporting or self._waiting
        return not asks and not self._columns["temperature"][rows].any()

    def num_samples(self, rows: Int64Array) -> Int64Array:
        """How many tokens each draws; more than one the first time only."""
        samples: Int64Array = self._columns["num_samples"][rows]
        return samples

    def num_candidates(self, rows: Int64Array) -> Int64Array:
        """How many candidates each reports instead of drawing; 0: it draws."""
        candidates: Int64Array = self._columns["num_candidates"][rows]
        return candidates

    def num_logprobs(self, rows: Int64Array) -> Int64Array | None:
        """How many rivals each reports beside its token; below 0: not even that. None: no row reports any."""
        if not self._num_reporting:
            return None
        counts: Int64Array = self._columns["num_logprobs"][rows]
        return counts

    def logprob_token_ids(self, rows: Int64Array) -> dict[int, tuple[int, ...]]:
        """Whose rivals are named, by their places in `rows`."""
        named = ((place, self._joined[row].sampling.logprob_token_ids) for place, row in enumerate(rows.tolist()))
        return {place: token_ids for place, token_ids in named if token_ids is not None}

    def shapers(self, rows: Int64Array) -> list[tuple[int, Shaper]]:
        """What changes the logits of these rows, by their places in `rows`."""
        if not self._num_shaped:
            return []
        pairs = enumerate(rows.tolist())
        return [(place, shaper) for place, row in pairs if (shaper := self._shapers[row]) is not None]

    def sampling(self, rows: Int64Array, choices: Int64Array | None = None) -> SamplingRows:
        """What these rows ask for, each at the position that it samples now; `choices`, where a row draws for several
        of its request's answers, counts from its own."""
        columns = self._columns[rows]
        seeds = columns["seed"]
        if choices is not None:
            firsts = [self._joined[row] for row in rows]
            pairs = zip(firsts, choices.tolist(), strict=True)
            own = [choice_seed(joined.seed, joined.choice + choice) % 2**64 for joined, choice in pairs]
            seeds = np.array(own, np.uint64)
        return SamplingRows(
            temperature=columns["temperature"],
            top_k=columns["top_k"],
            top_p=columns["top_p"],
            min_p=columns["min_p"],
            seeds=seeds,
            positions=columns["known"],
            masked=self._masked(rows, columns) if self._waiting else (),
        )

    def advance(self, work: StepWork, rows: Int64Array, tokens: Int64Array) -> list[tuple[int, list[int]]]:
        """After the step: all of `work` is computed, and these rows have sampled these tokens. Gives the tokens that
        must follow, by row, where a grammar says so: they are known from now on."""
        self._columns["computed"][work.rows] = work.layout.context_lengths
        self._columns["known"][rows] += 1
        self._columns["last_token"][rows] = tokens
        if self._num_special:
            self._columns["num_samples"][rows] = 1
        forced: list[tuple[int, list[int]]] = []
        if self._num_shaped:
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
                if (shaper := self._shapers[row]) is not None:
                    shaper.take(token)
                    if more := shaper.force():
                        self._append(row, [token, *more])
                        forced.append((row, more))
        return forced

    def _append(self, row: int, tokens: list[int]) -> None:
        """The sampled token and what must follow it are kept until they are computed. Those sampled before them are
        computed already, and nobody asks for them: their places hold zeros."""
        sampled_at = int(self._columns["known"][row]) - 1
        kept = np.zeros(sampled_at + len(tokens), np.int64)
        kept[: len(self._tokens[row])] = self._tokens[row][: len(kept)]
        kept[sampled_at:] = tokens
        self._tokens[row] = kept
        self._columns["known"][row] = len(kept)
        self._columns["last_token"][row] = tokens[-1]

    def stand_in(self, rows: Int64Array) -> None:
        """These rows could not be sampled, and the next plan may be under way already: a token stands in for theirs, so
        that it can be carried out. What comes of it is no one's: their sequences have ended."""
        self._columns["known"][rows] += 1
        self._columns["last_token"][rows] = 0

    def _leave(self, sequence: SequenceId) -> None:
        row = self._find(sequence, "leaves")
        del self._row[sequence]
        last = len(self._joined) - 1
        joined = self._joined[row]
        self._waiting -= joined.sampling.min_tokens > 0
        self._num_special -= joined.num_samples > 1 or joined.num_candidates > 0
        self._num_shaped -= self._shapers[row] is not None
        self._num_reporting -= reports(joined)
        self._num_scoring -= joined.prompt_logprobs_from is not None
        self._num_pooling -= joined.pooling is not None
        if row != last:
            self.moves.append((row, last))
            self._joined[row], self._tokens[row] = self._joined[last], self._tokens[last]
            self._shapers[row] = self._shapers[last]
            self._columns[row] = self._columns[last]
            self._row[self._joined[row].sequence] = row
            for table in self._tables:
                table[row] = table[last]
        self._joined.pop()
        self._tokens.pop()
        self._shapers.pop()
        for table in self._tables:
            table[last] = -1

    def _join(self, joined: JoinedSequence) -> None:
        name, known = joined.sequence, len(joined.token_ids)
        if name in self._row:
            raise AssertionError(f"sequence {name} joins, but is in the batch already")
        if not 0 <= joined.num_computed < known:
            raise AssertionError(f"sequence {name} joins with {joined.num_computed} of {known} tokens computed")
        if len(joined.block_tables) != len(self._tables):
            raise AssertionError(
                f"sequence {name} joins with {len(joined.block_tables)} tables, not {len(self._tables)}"
            )
        row = len(self._joined)
        self._reserve(row + 1, max(map(len, joined.block_tables)))
        for table, blocks in zip(self._tables, joined.block_tables, strict=True):
            table[row, : len(blocks)] = [-1 if block is None else self._check_block(block) for block in blocks]
        sampling = joined.sampling
        self._columns[row] = columns_of(joined)
        self._num_reporting += reports(joined)
        self._num_scoring += joined.prompt_logprobs_from is not None
        self._num_pooling += joined.pooling is not None
        self._num_special += joined.num_samples > 1 or joined.num_candidates > 0
        self._waiting += sampling.min_tokens > 0
        self._row[name] = row
        self._joined.append(joined)
        tokens = np.array(joined.token_ids, np.int64)
        self._tokens.append(tokens)
        shaper = shaper_of(joined, tokens, self._grammars)
        self._shapers.append(shaper)
        self._num_shaped += shaper is not None

    def _write_tables(self, plan: StepPlan) -> None:
        rows = [self._find(sequence, "has a table entry written") for sequence in plan.write_sequences]
        if not len(rows) == len(plan.write_groups) == len(plan.write_indexes) == len(plan.write_blocks):
            raise AssertionError("the columns of the plan's table writes differ in length")
        self._reserve(0, max(plan.write_indexes) + 1)
        for row, group, index, block in zip(
            rows, plan.write_groups, plan.write_indexes, plan.write_blocks, strict=True
        ):
            if not 0 <= group < len(self._tables):
                raise AssertionError(f"a table entry of group {group} is written; there are {len(self._tables)} groups")
            self._tables[group][row, index] = self._check_block(block)

    def _lengths(self, plan: StepPlan) -> Int64Array:
        """How many tokens each row computes."""
        columns = self._columns[: len(self)]
        lengths = np.ones(len(self), np.int64)
        if len(plan.chunk_sequences) != len(plan.chunk_lengths):
            raise AssertionError("the columns of the plan's chunks differ in length")
        if plan.chunk_sequences:
            rows = [self._find(sequence, "computes a chunk") for sequence in plan.chunk_sequences]
            lengths[rows] = plan.chunk_lengths
        remaining = columns["known"] - columns["computed"]
        if ((lengths < 0) | (lengths > remaining)).any():
            row = int(np.flatnonzero((lengths < 0) | (lengths > remaining))[0])
            raise AssertionError(
                f"sequence {self.sequence(row)} is to compute {lengths[row]} tokens; it has {remaining[row]} to compute"
            )
        if int(lengths.sum()) != plan.num_tokens:
            raise AssertionError(f"the plan counts {plan.num_tokens} tokens, its sequences {int(lengths.sum())}")
        return lengths

    def _token_ids(self, rows: Int64Array, starts: Int64Array, lengths: Int64Array, ends: Int64Array) -> Int64Array:
        tokens = np.empty(int(ends[-1]), np.int64)
        last = starts + lengths == self._columns["known"][rows]
        tokens[ends[last] - 1] = self._columns["last_token"][rows[last]]
        for i in np.flatnonzero((lengths > 1) | ~last):
            start = int(starts[i])
            tokens[ends[i] - lengths[i] : ends[i]] = self._tokens[rows[i]][start : start + int(lengths[i])]
        return tokens

    def _scored(
        self, rows: Int64Array, starts: Int64Array, contexts: Int64Array, ends: Int64Array
    ) -> tuple[tuple[tuple[int, int, Int64Array, int], ...], Int64Array]:
        """`StepWork.scored`, and the rows of the flat batch that give their logits: each the token before."""
        columns = self._columns[rows]
        firsts = np.maximum(starts + 1, columns["prompt_logprobs_from"])
        afters = np.minimum(contexts + 1, columns["num_prompt_tokens"])
        scored, flat = [], [ends[:0]]
        for i in np.flatnonzero(firsts < afters).tolist():
            row, first, after = int(rows[i]), int(firsts[i]), int(afters[i])
            count = self._joined[row].sampling.prompt_logprobs or 0
            scored.append((row, first, self._tokens[row][first:after], count))
            flat.append(np.arange(first, after) - 1 + int(ends[i] - contexts[i]))
        return tuple(scored), np.concatenate(flat)

    def _pooled(
        self, rows: Int64Array, lengths: Int64Array, ends: Int64Array, samples: npt.NDArray[np.bool_]
    ) -> tuple[tuple[tuple[int, int, bool], ...], Int64Array]:
        """`StepWork.pooled`, and the rows of the flat batch that it takes. Its rows are taken out of `samples`."""
        pooled, flat = [], [ends[:0]]
        for i, row in enumerate(rows.tolist()):
            if (pooling := self._joined[row].pooling) is None:
                continue
            is_last, samples[i] = bool(samples[i]), False
            count = int(lengths[i]) if pooling.needs_every_state else int(is_last)
            if count:
                pooled.append((row, count, is_last))
                flat.append(np.arange(ends[i] - count, ends[i]))
        return tuple(pooled), np.concatenate(flat)

    def _slots(self, rows: Int64Array, positions: Int64Array) -> tuple[Int64Array, ...]:
        return slots(self._tables, rows, positions, self._block_size, self.sequence)

    def _masked(self, rows: Int64Array, columns: npt.NDArray[np.void]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        early = columns["known"] - columns["num_prompt_tokens"] < columns["min_tokens"]
        pairs = ((int(i), int(rows[i])) for i in np.flatnonzero(early))
        # A grammar whose text is complete lets nothing come but the end.
        return tuple((i, self._joined[row].end_token_ids) for i, row in pairs if not at_end(self._shapers[row]))

    def _find(self, sequence: SequenceId, what: str) -> int:
        row = self._row.get(sequence)
        if row is None:
            raise AssertionError(f"sequence {sequence} {what}, but is not in the batch")
        return row

    def _check_block(self, block: int) -> int:
        if not 0 <= block < self._num_blocks:
            raise AssertionError(f"block {block} is in a table, but there are {self._num_blocks} blocks")
        return block

    def _reserve(self, rows: int, width: int) -> None:
        """Room for so many rows and table entries; doubles, so that growing costs little over time."""
        if rows > len(self._columns):
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)))
        height, had = len(self._columns), self._tables[0].shape[1]
        wide = had if width <= had else max(width, 2 * had)
        if (height, wide) == self._tables[0].shape:
            return
        for group, table in enumerate(self._tables):
            grown = np.full((height, wide), -1, np.int32)
            grown[: table.shape[0], :had] = table
            self._tables[group] = grown
