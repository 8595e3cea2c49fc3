"""The runner: takes a `StepPlan`, answers a `StepResult`; all that touches torch while the engine runs is below it.

Synchronous, and used by one thread, the device thread. A request's fault never raises here: unusable logits end their
sequence alone, through `StepResult.failed`. A plan that breaks its promises raises `AssertionError`, which is our own
bug and ends the engine.
"""

import time

import torch

from ..engine.core.ids import TokenId
from ..engine.core.logprobs import PromptLogprobs
from ..engine.core.plan import StepPlan, StepResult
from .batch import KeptBatch
from .draws import Draws, draw
from .forward import make_forward
from .grammar import Grammars
from .kv import KVTensors
from .llama import LlamaModel
from .logprobs import prompt_logprobs
from .native.kv import NativeKV
from .native.weights import NativeModel
from .pooling import Pooled, Pools

UNUSABLE = "the model's logits are not numbers"
"""Why a sequence failed, fit for a client."""

UNUSABLE_STATES = "the model's hidden states are not numbers"


class ModelRunner:
    """Keeps the batch and carries out plans, in the order that `engine/core/plan.py` writes down."""

    def __init__(
        self,
        model: LlamaModel | NativeModel,
        *,
        kv: KVTensors | NativeKV,
        attention_backend: str | None = None,
        num_threads: int = 1,
    ) -> None:
        """A native model goes with a native cache, a torch model with tensors. `attention_backend` is a name of the
        registry; None takes the best for the model's device. `num_threads`: the most that native kernels use.

        Raises `ConfigurationError` for a name that is not known or cannot run here.
        """
        self.model = model
        self.kv = kv
        self.forward = make_forward(model, kv, attention_backend, num_threads)
        self._grammars: Grammars | None = None
        self._batch = self._new_batch()
        self._pools = Pools()
        self._step: int | None = None

    def use_grammars(self, grammars: Grammars) -> None:
        """From the next plan on, which must be the first: what `SamplingParams.grammar` is matched with."""
        self._grammars = grammars
        self._batch = self._new_batch()

    def _new_batch(self) -> KeptBatch:
        kv = self.kv
        return KeptBatch(
            num_groups=kv.num_groups, block_size=kv.block_size, num_blocks=kv.num_blocks, grammars=self._grammars
        )

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget the batch, as if new: the next plan may have any number. What the KV blocks hold stays. A torch model
        computes a token, to see that its device answers, and raises what that raises."""
        self._batch = self._new_batch()
        self._pools = Pools()
        self._step = None
        if isinstance(self.model, LlamaModel):
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()
            zero = torch.zeros(1, dtype=torch.int64, device=self.model.device)
            self.model.forward(zero, zero, lambda layer, q, k, v: q.contiguous(), zero).sum().item()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one plan. Blocks until its tokens are known."""
        started = time.perf_counter()
        if self._step is not None and plan.step != self._step + 1:
            raise AssertionError(f"step {plan.step} comes after step {self._step}")
        self._step = plan.step
        self._batch.apply(plan)
        self._pools.forget(plan.left)
        self.kv.copy_blocks(plan.copy_sources, plan.copy_targets)
        work = self._batch.work(plan)
        if work is None:
            return StepResult(step=plan.step, seconds=time.perf_counter() - started)
        logits, best = self.forward(work)
        computed = time.perf_counter()
        prompts = prompt_logprobs(logits, self._batch, work)
        pooled = self._pools.take(self.forward.states, self._batch, work)
        draws = draw(logits[: len(work.sampled_rows)], self._batch, work.sampled_rows, best)
        forced = self._batch.advance(work, draws.rows[draws.first], draws.tokens[draws.first])
        self._batch.stand_in(draws.failed_rows)
        # A GPU may work on once the logits are "there": what is left then counts to sampling.
        now = time.perf_counter()
        return result_of_draws(
            plan.step, self._batch, draws, prompts, pooled, forced, seconds=now - started, sample_seconds=now - computed
        )


def result_of_draws(
    step: int,
    batch: KeptBatch,
    draws: Draws,
    prompts: list[tuple[int, PromptLogprobs]],
    pooled: Pooled,
    forced: list[tuple[int, list[int]]],
    *,
    seconds: float,
    sample_seconds: float,
) -> StepResult:
    """What a step's draws say, by the names of its sequences; `batch` has not changed since."""
    name = batch.sequence
    return StepResult(
        step=step,
        sequences=tuple(map(name, draws.rows.tolist())),
        token_ids=tuple(map(TokenId, draws.tokens.tolist())),
        candidates=tuple((name(row), *candidates) for row, candidates in draws.candidates),
        logprobs=draws.logprobs,
        prompt_logprobs=tuple((name(row), said) for row, said in prompts),
        vectors=pooled.vectors,
        forced=tuple((name(row), tuple(map(TokenId, tokens))) for row, tokens in forced),
        failed=(
            *((name(row), UNUSABLE) for row in draws.failed_rows.tolist() if row not in draws.ruled_out),
            *((sequence, UNUSABLE_STATES) for sequence in pooled.failed),
        ),
        ruled_out=tuple(map(name, sorted(draws.ruled_out))),
        seconds=seconds,
        sample_seconds=sample_seconds,
    )
