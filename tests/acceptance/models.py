"""Random models on disk and what transformers says to them: the references of the acceptance tests.

Two correct programs may differ in the last bits of a logit, and then choose differently between tokens that are about
equally likely. So a case is drawn anew until the reference was clear in all its choices; its answer is then the only
right one, on every machine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from transformers import PreTrainedModel

from tests.model.running import greedy_tokens, reference_model
from tests.model.tiny import VOCAB_SIZE, write_folder
from triolet.engine.config import EngineConfig
from triolet.engine.core.params import SamplingParams
from triolet.kvcache.arithmetic import block_bytes
from triolet.model.sampling import uniforms

MAX_LENGTH = 128
"""Positions of a random model, unless a test wants more."""
BLOCK_SIZE = 16
LEAST_GAP = 1e-3
"""Between the best and the second best logit: the logits of two float32 programs differ by some 1e-5."""
LEAST_ROOM = 1e-5
"""Between a random number and the next edge of the cumulated probabilities: those differ by some 1e-7."""


@attrs.frozen
class Case:
    """A prompt and its right answer, `params.max_tokens` long."""

    prompt: list[int]
    answer: list[int]
    params: SamplingParams


@attrs.frozen
class RandomModel:
    """A model in a folder, and the same one in transformers."""

    folder: Path
    reference: PreTrainedModel

    def config(self, *, num_blocks: int = 256, **fields: Any) -> EngineConfig:
        """Float32, plain torch, and a KV cache of so many blocks."""
        shape = self.reference.config
        block = block_bytes(
            num_layers=shape.num_hidden_layers,
            num_kv_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            element_bytes=4,
            block_size=BLOCK_SIZE,
        )
        settings: dict[str, Any] = {
            "model": str(self.folder),
            "dtype": "float32",
            "attention_backend": "torch",
            "kv_cache_memory": num_blocks * block,
            "block_size": BLOCK_SIZE,
        }
        return EngineConfig(**{**settings, **fields})

    def greedy_cases(self, count: int, max_tokens: int, *, seed: int = 0, longest: int = 70) -> list[Case]:
        """Random prompts and what `generate` says to them; no two answers are the same."""
        random, cases = np.random.default_rng(seed), {}
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for _ in range(3 * count):
            prompt = random_prompt(random, longest)
            answer = greedy_tokens(self.reference, prompt, max_tokens)
            best = logits_along(self.reference, prompt, answer).topk(2).values
            if float((best[:, 0] - best[:, 1]).min()) > LEAST_GAP:
                cases[tuple(answer)] = Case(prompt, answer, params)
            if len(cases) == count:
                return list(cases.values())
        raise AssertionError("this model hesitates too often to be a reference")

    def drawn_cases(self, count: int, max_tokens: int, *, seed: int = 0, longest: int = 70) -> list[Case]:
        """Random prompts with a temperature and a seed each, and the tokens that their random numbers fall on."""
        random, cases = np.random.default_rng(seed), []
        for number in range(3 * count):
            params = SamplingParams(
                temperature=(0.5, 1.0, 1.5)[number % 3], seed=number, max_tokens=max_tokens, ignore_eos=True
            )
            prompt = random_prompt(random, longest)
            answer, room = draw_along(self.reference, prompt, params)
            if room > LEAST_ROOM:
                cases.append(Case(prompt, answer, params))
            if len(cases) == count:
                return cases
        raise AssertionError("these seeds fall on edges too often to be a reference")


def random_model(folder: Path, *, seed: int = 0, **fields: Any) -> RandomModel:
    """A Llama whose weights are large enough that its choices are clear."""
    shape = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_LENGTH, "num_hidden_layers": 2, "head_dim": 16}
    model = reference_model("llama", seed=seed, **{**shape, **fields})
    write_folder(folder, model)
    return RandomModel(folder, model)


def random_prompt(random: np.random.Generator, longest: int) -> list[int]:
    """Token ids, none of them special."""
    return random.integers(3, VOCAB_SIZE, random.integers(1, longest, endpoint=True)).tolist()


def logits_along(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """What transformers' logits were before each token of the answer: `[len(answer), vocab_size]`."""
    tokens = torch.tensor([[*prompt, *answer]])
    with torch.inference_mode():
        return model(tokens, attention_mask=torch.ones_like(tokens)).logits[0, len(prompt) - 1 : -1].double()


def draw_along(model: PreTrainedModel, prompt: Sequence[int], params: SamplingParams) -> tuple[list[int], float]:
    """Sampling as it is defined: the token where the random number of (seed, position) falls among the cumulated
    probabilities. Also how near to an edge one fell."""
    answer: list[int] = []
    room = 1.0
    assert params.max_tokens is not None
    for _ in range(params.max_tokens):
        logits = logits_along(model, prompt, [*answer, 0])[-1]
        edges = (logits / params.temperature).softmax(-1).cumsum(-1).numpy()
        position = np.array([len(prompt) + len(answer)])
        number = uniforms(np.array([params.seed], np.uint64), position)[0]
        answer.append(int(np.searchsorted(edges, number, "right")))
        room = min(room, float(np.abs(edges - number).min()))
    return answer, room
