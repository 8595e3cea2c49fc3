"""Vectors from real weights, through LLM and both carriers: transformers' hidden states, whatever else is going on."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.params import SamplingParams
from triolet.engine.llm import LLM

from .models import VOCAB_SIZE, RandomModel, random_model

RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(3, VOCAB_SIZE, length).tolist() for length in (1, 3, 16, 33, 64, 90, 41)]
TOLERANCES = {"torch, float32": 1e-4, "native, float32": 1e-4, "native, bfloat16": 3e-2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return random_model(tmp_path_factory.mktemp("embedding") / "random")


@pytest.fixture(scope="module", params=TOLERANCES)
def llm(request: pytest.FixtureRequest, model: RandomModel) -> Iterator[tuple[LLM, float]]:
    """Small steps, so that every prompt but the shortest is computed in chunks."""
    backend, dtype = request.param.split(", ")
    fields = {"attention_backend": backend, "dtype": dtype, "max_num_batched_tokens": 24, "max_num_seqs": 8}
    config = {**fields, "kv_cache_memory": 4 << 20, "block_size": 16}
    with LLM(str(model.folder), progress=False, **config) as llm:
        yield llm, TOLERANCES[request.param]


def expected(model: RandomModel, prompt: list[int], kind: str) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        states = model.reference.model(torch.tensor([prompt])).last_hidden_state[0].double()
    pooled = states[-1] if kind == "last" else states.mean(0)
    return np.asarray((pooled / pooled.norm()).numpy())


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_vectors_are_transformers_hidden_states(llm: tuple[LLM, float], model: RandomModel, kind: Any) -> None:
    """All at once in chunks, then one by one, then with a cached beginning, then beside answers."""
    engine, tolerance = llm
    wanted = [expected(model, prompt, kind) for prompt in PROMPTS]
    together = engine.embed(PROMPTS, pooling=kind, progress=False)
    alone = [engine.embed(prompt, pooling=kind, progress=False)[0] for prompt in PROMPTS]
    for outputs in (together, alone):
        for output, prompt, vector in zip(outputs, PROMPTS, wanted, strict=True):
            assert output.prompt_token_ids == tuple(prompt)
            assert np.isclose(np.linalg.norm(output.embedding), 1, atol=1e-6)
            np.testing.assert_allclose(output.embedding, vector, atol=tolerance)
    cached = [output.num_cached_tokens for output in alone]
    assert cached == ([0, 0, 0, 32, 48, 80, 32] if kind == "last" else [0] * 7)


def test_vectors_can_be_cut_and_left_unscaled(llm: tuple[LLM, float], model: RandomModel) -> None:
    """A cut one is one long again; a dimension too many is refused."""
    engine, tolerance = llm
    (short,) = engine.embed(PROMPTS[3], dimensions=5, progress=False)
    vector = expected(model, PROMPTS[3], "last")[:5]
    np.testing.assert_allclose(short.embedding, vector / np.linalg.norm(vector), atol=4 * tolerance)
    (plain,) = engine.embed(PROMPTS[3], normalize=False, progress=False)
    assert np.linalg.norm(plain.embedding) > 1.5
    with pytest.raises(InvalidRequest, match="dimensions must be from 1 to 64"):
        engine.embed(PROMPTS[3], dimensions=65, progress=False)


def test_an_answer_finds_what_an_embedding_computed(llm: tuple[LLM, float]) -> None:
    """A mean does not read the cache, and fills it."""
    engine, _ = llm
    prompt = RANDOM.integers(3, VOCAB_SIZE, 40).tolist()
    engine.embed(prompt, pooling="mean", progress=False)
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=2), progress=False)
    assert output.num_cached_tokens == 32


def test_a_runner_process_gives_the_same_vectors(model: RandomModel) -> None:
    """Bit for bit what the thread gives."""
    found = []
    for runner in ("thread", "process"):
        with LLM(str(model.folder), progress=False, runner=runner, dtype="float32", kv_cache_memory=4 << 20) as llm:
            outputs = llm.embed(PROMPTS, pooling="mean", progress=False)
            found.append([output.embedding for output in outputs])
    assert found[0] == found[1]
