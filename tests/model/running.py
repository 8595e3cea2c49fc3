"""Tiny models in memory and a driver that makes plans by hand: what the tests of the running half share."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from triolet.engine.core.ids import SequenceId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import JoinedSequence, StepPlan, StepResult
from triolet.engine.core.pooling import Pooling
from triolet.kvcache.ids import BlockId
from triolet.model.kv import KVTensors
from triolet.model.llama import LlamaModel, build_model
from triolet.model.runner import ModelRunner
from triolet.model.spec import ModelSpec

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPE: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GREEDY = SamplingParams(temperature=0)


def reference_model(family: str = "llama", *, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A random model of transformers in float32, its weights large enough that logits differ clearly."""
    torch.manual_seed(seed)
    config_class, model_class = CLASSES[family]
    config = config_class(**{**SHAPE, **fields, "attn_implementation": "eager"})
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if name.endswith("bias") or "norm" in name else 0.15
            parameter.copy_(torch.randn_like(parameter) * scale + (1.0 if "norm" in name else 0.0))
    return model


def spec_of(config: Any) -> ModelSpec:
    """The spec of a transformers config, read without the loading half."""
    kind = config.model_type
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        sliding = tuple(i for i, name in enumerate(layer_types) if name == "sliding_attention")
    else:
        sliding = tuple(range(config.num_hidden_layers)) if getattr(config, "sliding_window", None) else ()
    biased = getattr(config, "attention_bias", False)
    return ModelSpec(
        architecture=CLASSES[kind][1].__name__,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        tied_embeddings=config.tie_word_embeddings,
        rope_theta=config.rope_parameters["rope_theta"],
        rope_parameters=dict(config.rope_parameters),
        attention_bias=biased or kind == "qwen2",
        output_bias=biased,
        mlp_bias=getattr(config, "mlp_bias", False),
        qk_norm=kind == "qwen3",
        sliding_window=config.sliding_window if sliding else None,
        sliding_layers=sliding,
        torch_dtype="float32",
    )


def our_model(reference: PreTrainedModel, **options: Any) -> LlamaModel:
    """The same weights in our model, in float32."""
    options.setdefault("dtype", torch.float32)
    return build_model(spec_of(reference.config), reference.state_dict().items(), **options)


def greedy_tokens(reference: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers' `generate` answers, greedily, `count` tokens long."""
    tokens = torch.tensor([list(prompt)])
    everything = torch.ones_like(tokens)  # else tokens that equal the padding token would be hidden
    answer = reference.generate(tokens, attention_mask=everything, max_new_tokens=count, do_sample=False)
    return list(answer[0, len(prompt) :].tolist())


@attrs.define(kw_only=True)
class Running:
    """A sequence as the driver knows it."""

    tokens: list[int]
    num_prompt: int
    computed: int
    table: list[int]
    sampling: SamplingParams
    seed: int
    end_token_ids: tuple[int, ...]
    pooling: Pooling | None = None


class Driver:
    """Makes plans by hand: the tests say who joins, how much is computed, who leaves. Blocks are given out in a
    scattered order and never twice, so that a wrong table cannot go unseen."""

    def __init__(self, model: LlamaModel, *, num_blocks: int = 128, block_size: int = 4, **options: Any) -> None:
        self.kv = KVTensors(model.spec, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype)
        for tensor in self.kv.tensors:
            tensor.fill_(float("nan"))
        self.runner = ModelRunner(model, kv=self.kv, **options)
        self.running: dict[int, Running] = {}
        self.free = [(i * 37 + 11) % num_blocks for i in range(num_blocks)]
        assert len(set(self.free)) == num_blocks
        self.steps = 0
        self._left: list[int] = []
        self._joined: list[int] = []
        self._names = 0

    def join(
        self,
        tokens: Sequence[int],
        *,
        num_prompt: int | None = None,
        computed: int = 0,
        table: Sequence[int] = (),
        sampling: SamplingParams = GREEDY,
        seed: int = 0,
        end_token_ids: tuple[int, ...] = (),
        pooling: Pooling | None = None,
    ) -> int:
        """A sequence joins with the next plan; `computed` tokens are in the blocks of `table` already."""
        self._names += 1
        self.running[self._names] = Running(
            tokens=list(tokens),
            num_prompt=len(tokens) if num_prompt is None else num_prompt,
            computed=computed,
            table=list(table),
            sampling=sampling,
            seed=seed,
            end_token_ids=end_token_ids,
            pooling=pooling,
        )
        self._joined.append(self._names)
        return self._names

    def leave(self, name: int) -> Running:
        if name in self._joined:
            self._joined.remove(name)  # no plan has named it yet
        else:
            self._left.append(name)
        return self.running.pop(name)

    def step(self, chunks: Mapping[int, int] | None = None, *, limit: int = 10**6, **fields: Any) -> StepResult:
        """One plan: each sequence computes all it has, at most `limit` tokens, unless `chunks` says otherwise."""
        plan, lengths = self.plan(chunks or {}, limit=limit, **fields)
        result = self.runner.execute(plan)
        for name, length in lengths.items():
            self.running[name].computed += length
        for name, token in zip(result.sequences, result.token_ids, strict=True):
            self.running[name].tokens.append(token)
        return result

    def plan(self, chunks: Mapping[int, int], *, limit: int = 10**6, **fields: Any) -> tuple[StepPlan, dict[int, int]]:
        """The next plan, and how many tokens each sequence computes in it."""
        lengths = {
            name: chunks.get(name, min(limit, len(run.tokens) - run.computed)) for name, run in self.running.items()
        }
        joined = tuple(self._joining(name, lengths[name]) for name in self._joined if name in self.running)
        writes = [write for name in self.running if name not in self._joined for write in self._grow(name, lengths)]
        self.steps += 1
        plan = StepPlan(
            step=self.steps,
            num_tokens=sum(lengths.values()),
            num_sequences=len(self.running),
            left=tuple(map(SequenceId, self._left)),
            joined=joined,
            write_sequences=tuple(SequenceId(name) for name, _, _ in writes),
            write_groups=(0,) * len(writes),
            write_indexes=tuple(index for _, index, _ in writes),
            write_blocks=tuple(BlockId(block) for _, _, block in writes),
            chunk_sequences=tuple(SequenceId(name) for name, length in lengths.items() if length != 1),
            chunk_lengths=tuple(length for length in lengths.values() if length != 1),
            **fields,
        )
        self._left, self._joined = [], []
        return plan, lengths

    def generate(self, name: int, count: int, *, limit: int = 10**6) -> list[int]:
        """Step until the sequence has `count` tokens behind its prompt."""
        run = self.running[name]
        while len(run.tokens) < run.num_prompt + count:
            self.step(limit=limit)
        return run.tokens[run.num_prompt : run.num_prompt + count]

    def _joining(self, name: int, length: int) -> JoinedSequence:
        run = self.running[name]
        for _ in self._grow(name, {name: length}):
            pass
        return JoinedSequence(
            sequence=SequenceId(name),
            token_ids=tuple(map(TokenId, run.tokens)),
            num_prompt_tokens=run.num_prompt,
            num_computed=run.computed,
            block_tables=(tuple(map(BlockId, run.table)),),
            sampling=run.sampling,
            seed=run.seed,
            end_token_ids=tuple(map(TokenId, run.end_token_ids)),
            pooling=run.pooling,
        )

    def _grow(self, name: int, lengths: Mapping[int, int]) -> list[tuple[int, int, int]]:
        run, writes = self.running[name], []
        while len(run.table) * self.kv.block_size < run.computed + lengths[name]:
            run.table.append(self.free.pop())
            writes.append((name, len(run.table) - 1, run.table[-1]))
        return writes
