"""The native step computes what torch computes: every architecture, decodes, chunks and mixed steps, over poison."""

from typing import Any

import attrs
import numpy as np
import pytest
import torch

from tests.model.native.steps import Sequences, native_forward, poisoned_tensors
from tests.model.running import our_model, reference_model, spec_of
from triolet.model.forward import TorchForward
from triolet.model.native.library import Format, Library

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "untied, biased": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "odd widths": ("llama", {"hidden_size": 80, "intermediate_size": 72, "head_dim": 48}),
    "one kv head": ("llama", {"num_key_value_heads": 1, "head_dim": 80}),
    "no sharing": ("llama", {"num_key_value_heads": 4, "head_dim": 128}),
    "mistral, window": ("mistral", {"sliding_window": 7, "head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 64}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
}
TOKENS = [[(7 * i + 3) % 131 for i in range(61)], [(11 * i + 5) % 131 for i in range(40)], [1, 2, 3]]
PIECES = [[17, 0, 3], [1, 38, 0], [30, 1, 0], [13, 1, 0]]
"""Chunks, decodes, and both in one step; some end inside a block."""


@pytest.mark.parametrize("name", MODELS)
def test_float32_logits_are_torchs(library: Library, name: str) -> None:
    """To rounding, at every position, however the prompts are cut; nothing unwritten is read."""
    family, fields = MODELS[name]
    reference = reference_model(family, **fields)
    forward = native_forward(library, spec_of(reference.config), reference.state_dict().items(), Format.FLOAT32)
    for tokens, logits in zip(TOKENS, Sequences(forward, TOKENS).run(PIECES), strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_logits_are_torchs_within_its_precision(library: Library, name: str) -> None:
    """No further from float32 than torch's own bfloat16 is."""
    family, fields = MODELS[name]
    reference = reference_model(family, **fields)
    spec = spec_of(reference.config)
    ours = our_model(reference, dtype=torch.bfloat16)
    torch_logits = Sequences(TorchForward(ours, poisoned_tensors(spec, torch.bfloat16)), TOKENS).run(PIECES)
    forward = native_forward(library, spec, reference.state_dict().items(), Format.BFLOAT16)
    logits = Sequences(forward, TOKENS).run(PIECES)
    for tokens, native, by_torch in zip(TOKENS, logits, torch_logits, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([tokens])).logits[0]
        error, allowed = (native - expected).abs().mean(), (by_torch - expected).abs().mean()
        assert error <= 1.2 * allowed


@pytest.mark.parametrize("format", [Format.FLOAT32, Format.BFLOAT16, Format.INT8])
@pytest.mark.parametrize("name", ["llama", "mistral, window"])
def test_a_tokens_logits_do_not_depend_on_what_is_computed_with_it(library: Library, name: str, format: Format) -> None:
    """Bit for bit: alone and in a batch, in one chunk and in many, by one thread and by two."""
    family, fields = MODELS[name]
    reference = reference_model(family, **fields)
    spec, weights = spec_of(reference.config), reference.state_dict()
    together = Sequences(native_forward(library, spec, weights.items(), format), TOKENS).run(PIECES)
    for tokens, logits in zip(TOKENS, together, strict=True):
        alone = Sequences(native_forward(library, spec, weights.items(), format, threads=1), [tokens])
        assert torch.equal(alone.run([[len(tokens)]])[0], logits)


def test_only_sampled_rows_go_through_the_head(library: Library) -> None:
    """The logits are those of the rows asked for, in their order; a step may sample none."""
    reference = reference_model()
    spec, weights = spec_of(reference.config), reference.state_dict()
    everything = Sequences(native_forward(library, spec, weights.items(), Format.FLOAT32), TOKENS).step([9, 4, 3])
    sequences = Sequences(native_forward(library, spec, weights.items(), Format.FLOAT32), TOKENS)
    assert torch.equal(sequences.step([9, 4, 3], every_row=False), everything[[8, 12, 15]])
    work = sequences.work([1, 1, 0])
    nothing = type(work)(
        rows=work.rows,
        token_ids=work.token_ids,
        positions=work.positions,
        layout=work.layout,
        sampled_rows=work.sampled_rows[:0],
        sampled_tokens=work.sampled_tokens[:0],
    )
    logits, _ = sequences.forward(nothing)
    assert logits.shape == (0, spec.vocab_size)


def test_a_part_of_a_head_may_turn(library: Library) -> None:
    """partial_rotary_factor: the rest of the head keeps its place, as in the torch model."""
    reference = reference_model("llama", head_dim=32)
    spec = attrs.evolve(spec_of(reference.config), partial_rotary_factor=0.5, rope_parameters={})
    from triolet.model.llama import build_model

    ours = build_model(spec, reference.state_dict().items(), dtype=torch.float32)
    expected = Sequences(TorchForward(ours, poisoned_tensors(spec, torch.float32)), TOKENS).run(PIECES)
    forward = native_forward(library, spec, reference.state_dict().items(), Format.FLOAT32)
    for native, by_torch in zip(Sequences(forward, TOKENS).run(PIECES), expected, strict=True):
        torch.testing.assert_close(native, by_torch, atol=1e-4, rtol=1e-4)


def test_logits_are_capped_softly(library: Library) -> None:
    """A cap on the final logits is cap * tanh(logits / cap)."""
    reference = reference_model()
    spec, weights = spec_of(reference.config), reference.state_dict()
    plain = Sequences(native_forward(library, spec, weights.items(), Format.FLOAT32), TOKENS).step([9, 4, 3])
    forward = native_forward(library, spec, weights.items(), Format.FLOAT32, logits_soft_cap=2.0)
    capped = Sequences(forward, TOKENS).step([9, 4, 3])
    torch.testing.assert_close(capped, 2 * torch.tanh(plain / 2), atol=1e-5, rtol=1e-5)
    assert not torch.equal(capped, plain)


def test_logits_that_are_not_numbers_are_seen(library: Library) -> None:
    """A NaN among the weights reaches the largest logit, so that the sequence fails and not the engine."""
    reference = reference_model()
    weights = dict(reference.state_dict())
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].clone()
    weights[name][0, 0] = float("nan")
    forward = native_forward(library, spec_of(reference.config), weights.items(), Format.FLOAT32)
    _, best = forward(Sequences(forward, TOKENS).work([2, 0, 0]))
    assert best.logits.tolist() != best.logits.tolist()


@pytest.mark.parametrize(("format", "tolerance"), [(Format.FLOAT32, 1e-4), (Format.BFLOAT16, 0.06)])
def test_states_are_those_of_the_last_norm(library: Library, format: Format, tolerance: float) -> None:
    """As transformers gives them out, of the rows asked for, whatever the pieces; a step may ask for none."""
    reference = reference_model()
    spec, weights = spec_of(reference.config), reference.state_dict()
    sequences = Sequences(native_forward(library, spec, weights.items(), format), TOKENS)
    found: list[list[torch.Tensor]] = [[] for _ in TOKENS]
    for lengths in PIECES:
        work = attrs.evolve(
            sequences.work(lengths, every_row=False), pooled_tokens=np.arange(sum(lengths))[::-1].copy()
        )
        sequences.forward(work)
        parts = torch.from_numpy(sequences.forward.states.copy()).flip(0).split([n for n in lengths if n])
        for row, part in zip(np.flatnonzero(lengths), parts, strict=True):
            sequences.computed[row] += lengths[row]
            found[row].append(part)
    for tokens, parts in zip(TOKENS, found, strict=True):
        with torch.inference_mode():
            expected = reference.model(torch.tensor([tokens])).last_hidden_state[0]
        torch.testing.assert_close(torch.cat(parts), expected, atol=tolerance * float(expected.abs().max()), rtol=0)
    sequences.computed = [0] * len(TOKENS)
    sequences.step([2, 0, 0])
    assert sequences.forward.states.shape == (0, spec.hidden_size)


def test_states_are_the_same_bits_in_any_chunk_and_batch(library: Library) -> None:
    """So that a vector does not depend on who else was there."""
    reference = reference_model()
    spec, weights = spec_of(reference.config), reference.state_dict()

    def states(pieces: list[list[int]]) -> np.ndarray[Any, Any]:
        sequences = Sequences(native_forward(library, spec, weights.items(), Format.BFLOAT16), TOKENS)
        found = []
        for lengths in pieces:
            work = attrs.evolve(sequences.work(lengths), pooled_tokens=np.arange(lengths[0]))
            sequences.forward(work)
            found.append(sequences.forward.states.copy())
            sequences.computed = [done + length for done, length in zip(sequences.computed, lengths, strict=True)]
        return np.concatenate(found)

    length = len(TOKENS[0])
    assert np.array_equal(states([[length, 0, 0]]), states([[2, 3, 1], [1, 0, 0], [length - 3, 1, 1]]))
