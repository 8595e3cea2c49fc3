"""The runner of a device that is fed ahead: `launch` starts a step and returns, `collect` gives its result later.

A `Runner` like `ModelRunner` (same plans, same results), used by one thread, the device thread. Two steps may be under
way: the second reads the first's tokens where they were sampled, on the device. What a step's requests ask for decides:

    plain     one token each, from the logits as they are: sampled on the device, fetched later
    careful   masks, penalties, grammars, log-probabilities, beams: sampled by `draws.py`, which waits for the logits

Both may follow one another at any step.
"""

import time
from collections import deque
from collections.abc import Callable

import attrs
import numpy as np
import torch
from torch import Tensor

from ...engine.core.ids import SequenceId, TokenId
from ...engine.core.plan import StepPlan, StepResult
from ..batch import StepWork
from ..draws import draw
from ..grammar import Grammars
from ..kv import KVTensors
from ..llama import LlamaModel
from ..logprobs import prompt_logprobs
from ..pooling import Pooled, Pools
from ..runner import UNUSABLE, result_of_draws
from ..sampling import Int64Array
from .batch import DeviceBatch
from .executor import MixedWork, StepExecutor
from .kernels import Kernels
from .transfer import Landing, Transfers

MOST_STEPS_UNDER_WAY = 2


@attrs.frozen(kw_only=True, eq=False)
class _Plain:
    """A step whose tokens are on their way."""

    step: int
    sequences: tuple[SequenceId, ...]
    places: Int64Array
    """Where each stands in what lands."""
    landing: Landing
    started: float


class DeviceRunner:
    """Keeps the batch on both sides, and carries out plans in the order that `engine/core/plan.py` writes down."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        kv: KVTensors,
        kernels: Kernels,
        executor: StepExecutor,
        transfers: Transfers,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The executor has captured what it replays, or is told to by whoever made it before the first plan."""
        self.model, self.kv = model, kv
        self._kernels, self._executor, self._transfers = kernels, executor, transfers
        self._clock = clock
        self._grammars: Grammars | None = None
        self._batch = self._new_batch()
        self._pools = Pools()
        self._step: int | None = None
        self._under_way: deque[_Plain | StepResult] = deque()
        self._landed_at = 0.0

    def use_grammars(self, grammars: Grammars) -> None:
        """From the next plan on, which must be the first: what `SamplingParams.grammar` is matched with."""
        self._grammars = grammars
        self._batch = self._new_batch()

    def _new_batch(self) -> DeviceBatch:
        kv = self.kv
        return DeviceBatch(
            num_groups=kv.num_groups, block_size=kv.block_size, num_blocks=kv.num_blocks, grammars=self._grammars
        )

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget the batch and the steps under way, as if new. What the KV blocks hold stays. Computes something, to
        see that the device answers, and raises what that raises."""
        self._under_way.clear()
        self._batch = self._new_batch()
        self._pools = Pools()
        self._step = None
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
            torch.cuda.empty_cache()
        self._executor.buffers.activate(np.empty(0, np.int64))
        self.model.head(torch.zeros_like(self.model.embedding[:1])).sum().item()

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one plan. Blocks until its tokens are known. No other step may be under way."""
        self.launch(plan)
        return self.collect()

    @property
    def num_under_way(self) -> int:
        """Steps that were launched and not collected."""
        return len(self._under_way)

    def ready(self) -> bool:
        """Whether `collect` would return at once."""
        first = self._under_way[0]
        return isinstance(first, StepResult) or first.landing.ready()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Start a step; returns before its tokens are known, if they are plain. At most `MOST_STEPS_UNDER_WAY`."""
        started = self._clock()
        if self._step is not None and plan.step != self._step + 1:
            raise AssertionError(f"step {plan.step} comes after step {self._step}")
        if len(self._under_way) >= MOST_STEPS_UNDER_WAY:
            raise AssertionError(f"step {plan.step} comes while {len(self._under_way)} are under way")
        self._step = plan.step
        batch, executor = self._batch, self._executor
        executor.buffers.apply(batch.change(plan), batch)
        self._pools.forget(plan.left)
        self._copy_blocks(plan)
        lengths = batch.lengths(plan)
        rows = np.flatnonzero(lengths)
        if not rows.size:
            self._under_way.append(StepResult(step=plan.step, seconds=self._clock() - started))
        elif batch.is_decode(lengths) and not batch.pools(rows):
            self._launch_decode(plan, lengths, rows, started)
        else:
            self._launch_mixed(plan, lengths[rows], rows, started)

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """The result of the oldest step under way. Blocks until its tokens are known."""
        first = self._under_way[0]
        if isinstance(first, StepResult):
            self._under_way.popleft()
            self._landed_at = self._clock()
            return first
        tokens, usable = first.landing.wait()[:, first.places]
        self._under_way.popleft()
        now = self._clock()
        begun, self._landed_at = max(first.started, self._landed_at), now
        good = usable > 0
        return StepResult(
            step=first.step,
            sequences=tuple(name for name, well in zip(first.sequences, good.tolist(), strict=True) if well),
            token_ids=tuple(map(TokenId, tokens[good].tolist())),
            failed=tuple((first.sequences[i], UNUSABLE) for i in np.flatnonzero(~good).tolist()),
            seconds=now - begun,
        )

    def _launch_decode(self, plan: StepPlan, lengths: Int64Array, rows: Int64Array, started: float) -> None:
        batch, executor = self._batch, self._executor
        num_rows = len(batch)
        plain = batch.is_plain(rows)
        work = None if plain else batch.work(plan)
        executor.buffers.activate(lengths)
        logits = executor.decode(num_rows)
        if work is not None:
            if len(rows) < len(logits):
                logits = logits.index_select(0, self._transfers.upload(rows))
            self._draw_carefully(plan, logits, work, Pooled(), started)
            return
        drawn = executor.draw(num_rows, all_greedy=batch.is_greedy(rows))
        self._take(plan, rows, lengths[rows], rows, rows, drawn, started)

    def _launch_mixed(self, plan: StepPlan, lengths: Int64Array, rows: Int64Array, started: float) -> None:
        batch, executor = self._batch, self._executor
        starts, samples = batch.starts(rows), batch.samples(rows, lengths)
        sampled = rows[samples]
        plain = batch.is_plain(sampled) and not batch.scores(rows, lengths) and not batch.pools(rows)
        work = None if plain else batch.work(plan)
        wanted = np.cumsum(lengths)[samples] - 1
        logits, states = executor.mixed(
            MixedWork(
                rows=rows,
                lengths=lengths,
                starts=starts,
                token_ids=batch.token_ids(rows, starts, lengths),
                wanted=wanted if work is None else work.sampled_tokens,
                pooled=wanted[:0] if work is None else work.pooled_tokens,
            )
        )
        if work is not None:
            pooled = self._pools.take(states.cpu().numpy(), batch, work)
            self._draw_carefully(plan, logits, work, pooled, started)
            return
        positions = (starts + lengths)[samples]
        drawn = executor.draw_rows(logits, sampled, positions, all_greedy=batch.is_greedy(sampled))
        self._take(plan, rows, lengths, sampled, np.arange(len(sampled)), drawn, started)

    def _take(
        self,
        plan: StepPlan,
        rows: Int64Array,
        lengths: Int64Array,
        sampled: Int64Array,
        places: Int64Array,
        drawn: Tensor,
        started: float,
    ) -> None:
        """The step is launched: go on as if its tokens were known."""
        self._under_way.append(
            _Plain(
                step=plan.step,
                sequences=self._batch.names(sampled),
                places=places,
                landing=self._transfers.download(drawn),
                started=started,
            )
        )
        self._batch.pass_over(rows, lengths, sampled)

    def _draw_carefully(self, plan: StepPlan, logits: Tensor, work: StepWork, pooled: Pooled, started: float) -> None:
        batch = self._batch
        computed = self._clock()
        prompts = prompt_logprobs(logits, batch, work)
        draws = draw(logits[: len(work.sampled_rows)], batch, work.sampled_rows, None)
        rows, tokens = draws.rows[draws.first], draws.tokens[draws.first]
        forced = batch.advance(work, rows, tokens)
        batch.stand_in(draws.failed_rows)
        if len(rows) or len(draws.failed_rows):
            stand_ins = np.zeros_like(draws.failed_rows)
            last = {row: more[-1] for row, more in forced}
            pairs = zip(rows.tolist(), tokens.tolist(), strict=True)
            tokens = np.array([last.get(row, token) for row, token in pairs], np.int64)
            self._executor.buffers.set_tokens(
                np.concatenate((rows, draws.failed_rows)), np.concatenate((tokens, stand_ins))
            )
        now = self._clock()
        self._under_way.append(
            result_of_draws(
                plan.step, batch, draws, prompts, pooled, forced, seconds=now - started, sample_seconds=now - computed
            )
        )

    def _copy_blocks(self, plan: StepPlan) -> None:
        if len(plan.copy_sources) != len(plan.copy_targets):
            raise AssertionError(f"{len(plan.copy_sources)} blocks to copy, but {len(plan.copy_targets)} targets")
        if not plan.copy_sources:
            return
        blocks = (*plan.copy_sources, *plan.copy_targets)
        if min(blocks) < 0 or max(blocks) >= self.kv.num_blocks:
            raise AssertionError(f"a block is to be copied that is none of the {self.kv.num_blocks}")
        self._kernels.copy_blocks(plan.copy_sources, plan.copy_targets)
