"""A step's computation on persistent buffers: whole graphs for decodes, recorded pieces for mixed steps.

Used by the device thread alone, under `torch.inference_mode`. It knows rows, sizes and tensors; plans, names and
results are the runner's (`runner.py`).

    decode   every row computes one token: the graph of the smallest size that holds the batch; rows that rest, and
             those behind the batch, are empty sequences
    mixed    up to `token_sizes[-1]` tokens: recorded pieces, padded with tokens that are nobody's, and attention
             between them on what is really there; beyond that the same eagerly, unpadded
"""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np
import torch
from torch import Tensor

from ..kv import KVTensors
from ..llama import LlamaModel
from ..sampling import Int64Array
from .buckets import choose
from .buffers import RowBuffers
from .graphs import Graphs
from .kernels import DeviceLayout, Kernels
from .passes import DevicePass, Halfway, Tokens
from .sampling import DeviceSampling
from .transfer import Transfers


@attrs.frozen(kw_only=True, eq=False)
class MixedWork:
    """A mixed step, on the host. Sequences are rows of the batch; the arrays are int64."""

    rows: Int64Array
    lengths: Int64Array
    starts: Int64Array
    token_ids: Int64Array
    """Flat; -1: the last token of the row, which the device has."""
    wanted: Int64Array
    """Tokens of the flat batch whose logits are wanted."""
    pooled: Int64Array
    """Those whose states are wanted."""


@attrs.frozen(kw_only=True, eq=False)
class _Pieces:
    """A recorded mixed step of one size."""

    first: Callable[[], object]
    later: tuple[Callable[[], object], ...]


class _Meeting:
    """Where recorded pieces and attention meet: one set of tensors for all sizes, each uses its beginning."""

    def __init__(self, model: LlamaModel, num_tokens: int, num_groups: int) -> None:
        spec, dtype, device = model.spec, model.dtype, model.device
        self.ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self.positions = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self.slots = tuple(torch.full((num_tokens,), -1, dtype=torch.int64, device=device) for _ in range(num_groups))
        heads = (num_tokens, spec.num_heads, spec.head_dim)
        self.queries = torch.zeros(heads, dtype=dtype, device=device)
        self.outputs = torch.zeros(heads, dtype=dtype, device=device)
        self.residual = torch.zeros((num_tokens, spec.hidden_size), dtype=dtype, device=device)


class StepExecutor:
    """Buffers, graphs, and the two kinds of step. `capture` once, before the first step."""

    def __init__(
        self,
        model: LlamaModel,
        kv: KVTensors,
        kernels: Kernels,
        *,
        graphs: Graphs,
        transfers: Transfers,
        max_model_len: int,
        decode_sizes: Sequence[int],
        token_sizes: Sequence[int],
    ) -> None:
        """Sizes rise; the last of `decode_sizes` is the most sequences of a step."""
        self._model, self._kv, self._kernels = model, kv, kernels
        self._graphs, self._transfers = graphs, transfers
        self._decode_sizes, self._token_sizes = tuple(decode_sizes), tuple(token_sizes)
        self._longest = max_model_len
        self._pass = DevicePass(model, kernels)
        self.buffers = RowBuffers(
            num_rows=self._decode_sizes[-1],
            num_groups=kv.num_groups,
            table_width=-(-max_model_len // kv.block_size) + 1,
            device=model.device,
            transfers=transfers,
        )
        self._decodes: dict[int, Callable[[], Tensor]] = {}
        self._draws: dict[tuple[int, bool], Callable[[], Tensor]] = {}
        self._pieces: dict[int, _Pieces] = {}
        self._meeting = _Meeting(model, max(self._token_sizes, default=0), kv.num_groups)
        self._logits = torch.empty(
            (self._decode_sizes[-1], model.spec.vocab_size), dtype=torch.float32, device=model.device
        )
        """Those of the last decode: one place for all sizes, each uses its beginning."""
        self._turns: object = None

    def capture(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Record all sizes, the largest first. No row is active: nothing that a step reads is changed.
        `progress(done, total)`."""
        total, done = len(self._decode_sizes) + len(self._token_sizes), 0
        for size in reversed(self._token_sizes):
            self._pieces[size] = self._record_pieces(size)
            done += 1
            if progress is not None:
                progress(done, total)
        for size in reversed(self._decode_sizes):
            self._record_decode(size)
            done += 1
            if progress is not None:
                progress(done, total)

    def decode(self, num_rows: int) -> Tensor:
        """Logits `[size, vocab_size]` of one token for each of the active rows, which all lie below `num_rows`; valid
        until the next step. The rows have one token more computed then."""
        return self._decodes[self._size(num_rows)]()

    def draw(self, num_rows: int, *, all_greedy: bool) -> Tensor:
        """After `decode`: the active rows' next tokens, and whether their logits were usable: int64 `[2, size]`, valid
        until the next step. The rows go on with them."""
        return self._draws[self._size(num_rows), all_greedy]()

    def mixed(self, work: MixedWork) -> tuple[Tensor, Tensor]:
        """Logits `[len(work.wanted), vocab_size]`, and float32 states `[len(work.pooled), hidden]` after the last norm.
        The rows have their tokens computed then."""
        num_tokens = len(work.token_ids)
        size = choose(self._token_sizes, num_tokens)
        tokens, layout = self._lay_out(work)
        if size is None:
            hidden = self._pass.hidden(tokens, layout)
        else:
            hidden = self._run_pieces(self._pieces[size], size, tokens, layout)
        self.buffers.advance(work.rows, work.starts + work.lengths)
        logits = self._pass.logits(hidden.index_select(0, self._transfers.upload(work.wanted)))
        if not len(work.pooled):
            return logits, hidden[:0].float()
        return logits, self._pass.normed(hidden.index_select(0, self._transfers.upload(work.pooled))).float()

    def draw_rows(self, logits: Tensor, rows: Int64Array, positions: Int64Array, *, all_greedy: bool) -> Tensor:
        """After `mixed`: a token for each of these rows, from logits in their order: int64 `[2, len(rows)]`. They go on
        with them. `positions` are those of the new tokens."""
        where, at = self._transfers.upload(np.stack((rows, positions)))
        buffers = self.buffers
        sampling = DeviceSampling(
            temperature=buffers.temperature[where],
            top_k=buffers.top_k[where],
            top_p=buffers.top_p[where],
            min_p=buffers.min_p[where],
            seeds=buffers.seeds[where],
            positions=at,
            all_greedy=all_greedy,
        )
        tokens, usable = self._kernels.sample(logits, sampling)
        buffers.tokens.index_copy_(0, where, tokens)
        return torch.stack((tokens, usable))

    def _size(self, num_rows: int) -> int:
        size = choose(self._decode_sizes, num_rows)
        if size is None:
            raise AssertionError(f"{num_rows} sequences decode, there is room for {self._decode_sizes[-1]}")
        return size

    # Decodes.

    def _record_decode(self, size: int) -> None:
        starts = torch.arange(size + 1, dtype=torch.int32, device=self._model.device)
        rows = torch.arange(size, device=self._model.device)
        self._decodes[size] = self._graphs.capture(partial(self._decode, size, starts, rows))
        for all_greedy in (True, False):
            self._draws[size, all_greedy] = self._graphs.capture(partial(self._draw, size, all_greedy))

    def _decode(self, size: int, starts: Tensor, rows: Tensor) -> Tensor:
        buffers = self.buffers
        active = buffers.active[:size]
        positions = buffers.computed[:size] * active
        tables = tuple(table[:size] for table in buffers.tables)
        slots = tuple(self._slots(table, rows, positions, active > 0) for table in tables)
        tokens = Tokens(ids=buffers.tokens[:size] * active, positions=positions, slots=slots)
        layout = DeviceLayout(
            query_starts=starts,
            context_lengths=((positions + 1) * active).to(torch.int32),
            tables=tables,
            slots=slots,
            rows=rows,
            positions=positions,
            most_queries=1,
            longest_context=self._longest,
        )
        logits = self._logits[:size]
        logits.copy_(self._pass.head(self._pass.hidden(tokens, layout)))
        buffers.computed[:size] += active
        return logits

    def _draw(self, size: int, all_greedy: bool) -> Tensor:
        buffers = self.buffers
        sampling = DeviceSampling(
            temperature=buffers.temperature[:size],
            top_k=buffers.top_k[:size],
            top_p=buffers.top_p[:size],
            min_p=buffers.min_p[:size],
            seeds=buffers.seeds[:size],
            positions=buffers.computed[:size],
            all_greedy=all_greedy,
        )
        tokens, usable = self._kernels.sample(self._logits[:size], sampling)
        own = buffers.tokens[:size]
        own.copy_(torch.where(buffers.active[:size] > 0, tokens, own))
        return torch.stack((tokens, usable))

    # Mixed steps.

    def _lay_out(self, work: MixedWork) -> tuple[Tokens, DeviceLayout]:
        """Everything about the step's own tokens, on the device; one upload."""
        ends = np.cumsum(work.lengths)
        contexts = work.starts + work.lengths
        sequences = np.repeat(np.arange(len(work.rows)), work.lengths)
        positions = np.arange(ends[-1]) + np.repeat(contexts - ends, work.lengths)
        flat = np.concatenate((work.token_ids, positions, sequences, work.rows, contexts, [0], ends))
        on_device = self._transfers.upload(flat)
        num_tokens, num_sequences = len(work.token_ids), len(work.rows)
        ids, positions_, sequences_, rows, contexts_, starts = torch.split(
            on_device, [num_tokens] * 3 + [num_sequences] * 2 + [num_sequences + 1]
        )
        row_of_token = rows[sequences_]
        tables = tuple(table.index_select(0, rows) for table in self.buffers.tables)
        slots = tuple(self._slots(table, sequences_, positions_, None) for table in tables)
        tokens = Tokens(
            ids=torch.where(ids < 0, self.buffers.tokens[row_of_token], ids), positions=positions_, slots=slots
        )
        layout = DeviceLayout(
            query_starts=starts.to(torch.int32),
            context_lengths=contexts_.to(torch.int32),
            tables=tables,
            slots=slots,
            rows=sequences_,
            positions=positions_,
            most_queries=int(work.lengths.max()),
            longest_context=int(contexts.max()),
        )
        return tokens, layout

    def _record_pieces(self, size: int) -> _Pieces:
        meeting = self._meeting
        tokens = Tokens(
            ids=meeting.ids[:size],
            positions=meeting.positions[:size],
            slots=tuple(slots[:size] for slots in meeting.slots),
        )
        first = self._graphs.capture(partial(self._first_piece, size, tokens))
        later = [
            self._graphs.capture(partial(self._later_piece, layer, size, tokens))
            for layer in range(self._pass.num_layers)
        ]
        return _Pieces(first=first, later=tuple(later))

    def _first_piece(self, size: int, tokens: Tokens) -> object:
        halfway = self._pass.first(tokens)
        self._meet(halfway, size)
        self._turns = halfway.turns  # the later pieces of the same size are recorded, or run, over them
        return self._turns

    def _later_piece(self, layer: int, size: int, tokens: Tokens) -> None:
        meeting = self._meeting
        halfway = Halfway(queries=meeting.queries[:size], residual=meeting.residual[:size], turns=self._turns)
        outputs = meeting.outputs[:size]
        if layer + 1 == self._pass.num_layers:
            meeting.residual[:size].copy_(self._pass.last(outputs, halfway))
        else:
            self._meet(self._pass.between(layer, outputs, halfway, tokens), size)

    def _meet(self, halfway: Halfway, size: int) -> None:
        self._meeting.queries[:size].copy_(halfway.queries)
        self._meeting.residual[:size].copy_(halfway.residual)

    def _run_pieces(self, pieces: _Pieces, size: int, tokens: Tokens, layout: DeviceLayout) -> Tensor:
        """Hidden states of the step's own tokens."""
        count, meeting = tokens.ids.shape[0], self._meeting
        for place, own in zip((meeting.ids, meeting.positions), (tokens.ids, tokens.positions), strict=True):
            place[:count].copy_(own)
            place[count:size].zero_()
        for place, own in zip(meeting.slots, tokens.slots, strict=True):
            place[:count].copy_(own)
            place[count:size].fill_(-1)
        meeting.outputs[count:size].zero_()
        pieces.first()
        for layer, run in enumerate(pieces.later):
            meeting.outputs[:count].copy_(self._kernels.attend(layer, meeting.queries[:count], layout))
            run()
        return meeting.residual[:count]

    def _slots(self, table: Tensor, rows: Tensor, positions: Tensor, valid: Tensor | None) -> Tensor:
        """The row of the KV tensors for each token; -1 where it is not `valid`."""
        block_size = self._kv.block_size
        indexes = positions // block_size
        blocks = table.reshape(-1).index_select(0, rows * table.shape[1] + indexes).long()
        slots = blocks * block_size + positions % block_size
        return slots if valid is None else torch.where(valid, slots, -1)
