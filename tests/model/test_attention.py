"""The torch backend against a naive float64 reference, over random tables, lengths and mixes; and the registry."""

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.engine.core.errors import ConfigurationError
from triolet.model.attention import (
    AttentionBackend,
    AttentionShape,
    StepLayout,
    backend_names,
    choose_backend,
    registry,
    torch_backend,
)
from triolet.model.attention.torch_backend import TorchAttention
from triolet.model.kv import KVTensors
from triolet.model.spec import ModelSpec

WINDOWS = (None, 3, 11)
"""One layer each."""


@attrs.frozen(kw_only=True)
class Case:
    """A step: for each sequence how much was computed before, and how much is now."""

    sequences: tuple[tuple[int, int], ...]
    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    seed: int
    dtype: torch.dtype = torch.float32


class Scene:
    """The tensors of a case. Every slot that is in no sequence's context holds NaN."""

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(case.seed)
        blocks = [-(-(before + now) // case.block_size) for before, now in case.sequences]
        num_blocks = sum(blocks) + 3
        order = torch.randperm(num_blocks, generator=generator).tolist()
        self.tables = np.full((len(blocks), max(blocks) + 1), -1, np.int32)
        for i, count in enumerate(blocks):
            self.tables[i, :count] = [order.pop() for _ in range(count)]
        spec = ModelSpec(
            architecture="LlamaForCausalLM",
            num_layers=len(WINDOWS),
            hidden_size=8,
            intermediate_size=8,
            num_heads=case.num_heads,
            num_kv_heads=case.num_kv_heads,
            head_dim=case.head_dim,
            vocab_size=8,
            rms_norm_eps=1e-5,
            max_position_embeddings=256,
            tied_embeddings=True,
        )
        self.shape = attrs.evolve(AttentionShape.of(spec), windows=WINDOWS)
        self.kv = KVTensors(spec, num_blocks=num_blocks, block_size=case.block_size, dtype=case.dtype)

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(case.dtype)

        self.contexts = [randn(before + now, 2, case.num_kv_heads, case.head_dim) for before, now in case.sequences]
        self.queries = randn(sum(now for _, now in case.sequences), case.num_heads, case.head_dim)
        slots = [
            [
                int(self.tables[i, p // case.block_size]) * case.block_size + p % case.block_size
                for p in range(sum(pair))
            ]
            for i, pair in enumerate(case.sequences)
        ]
        for layer in range(len(WINDOWS)):
            rows = self.kv.rows(layer).fill_(float("nan"))
            for (before, _), context, places in zip(case.sequences, self.contexts, slots, strict=True):
                rows[places[:before]] = context[:before].flatten(1)
        self.layout = StepLayout(
            query_lengths=np.array([now for _, now in case.sequences]),
            context_lengths=np.array([before + now for before, now in case.sequences]),
            tables=(self.tables,),
            write_slots=(np.array([s for (b, _), p in zip(case.sequences, slots, strict=True) for s in p[b:]]),),
        )

    def run(self, layer: int) -> torch.Tensor:
        """What the backend gives for the new tokens of all sequences."""
        backend = TorchAttention(self.shape, self.kv)
        metadata = backend.prepare(self.layout)
        new = torch.cat([context[b:] for (b, _), context in zip(self.case.sequences, self.contexts, strict=True)])
        with torch.inference_mode():
            backend.write(layer, new[:, 0], new[:, 1], metadata)
            return backend.attend(layer, self.queries, metadata)

    def reference(self, layer: int) -> torch.Tensor:
        """Token by token, head by head, in float64."""
        window, outputs, at = WINDOWS[layer], [], 0
        for (before, now), context in zip(self.case.sequences, self.contexts, strict=True):
            for position in range(before, before + now):
                first = 0 if window is None else max(0, position + 1 - window)
                seen = context[first : position + 1].double()
                for head in range(self.case.num_heads):
                    shared = head // (self.case.num_heads // self.case.num_kv_heads)
                    keys, values = seen[:, 0, shared], seen[:, 1, shared]
                    scores = keys @ self.queries[at, head].double() / self.case.head_dim**0.5
                    outputs.append(scores.softmax(0) @ values)
                at += 1
        return torch.stack(outputs).view(-1, self.case.num_heads, self.case.head_dim)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.integers(1, 3))
    return Case(
        sequences=tuple(
            draw(
                st.lists(
                    st.tuples(st.integers(0, 40), st.one_of(st.just(1), st.integers(1, 20))), min_size=1, max_size=6
                )
            )
        ),
        block_size=draw(st.sampled_from([1, 3, 4, 16])),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([4, 16, 20])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@settings(deadline=None, max_examples=120)
@given(cases())
def test_any_mix_equals_the_naive_reference_and_reads_no_other_slot(case: Case) -> None:
    """Prefill chunks and decodes, any table, window or none, with NaN in every slot that is nobody's."""
    scene = Scene(case)
    for layer in range(len(WINDOWS)):
        torch.testing.assert_close(scene.run(layer).double(), scene.reference(layer), rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(cases())
def test_small_slices_and_parts_change_nothing(case: Case) -> None:
    """The same with bounds so small that every batch is cut: slices of decodes, parts of chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "SLICE_TOKENS", 24)
        patch.setattr(torch_backend, "QUERY_ROWS", 3)
        scene = Scene(case)
        for layer in range(len(WINDOWS)):
            torch.testing.assert_close(scene.run(layer).double(), scene.reference(layer), rtol=1e-4, atol=1e-5)


def test_long_and_short_decodes_go_in_slices() -> None:
    """Forty sequences whose lengths differ a hundredfold, in one step with chunks longer than one part."""
    sequences = (*((3 + 13 * i % 300, 1) for i in range(40)), (0, 600), (37, 300), (0, 2))
    scene = Scene(Case(sequences=sequences, block_size=16, num_heads=3, num_kv_heads=1, head_dim=8, seed=5))
    for layer in range(len(WINDOWS)):
        torch.testing.assert_close(scene.run(layer).double(), scene.reference(layer), rtol=1e-4, atol=1e-5)


def test_bfloat16_keeps_its_sums_in_float32() -> None:
    """The error stays that of rounding inputs and output once, also over a long context."""
    sequences = ((500, 1), (0, 300), (20, 1))
    case = Case(
        sequences=sequences, block_size=16, num_heads=4, num_kv_heads=2, head_dim=16, seed=1, dtype=torch.bfloat16
    )
    scene = Scene(case)
    torch.testing.assert_close(scene.run(0).double(), scene.reference(0), rtol=0.02, atol=0.01)


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    """A decode alone and one among longer ones differ by rounding at most."""
    alone = Scene(Case(sequences=((21, 1),), block_size=4, num_heads=4, num_kv_heads=2, head_dim=16, seed=3))
    among = Scene(
        Case(sequences=((21, 1), (90, 1), (40, 7)), block_size=4, num_heads=4, num_kv_heads=2, head_dim=16, seed=4)
    )
    among.contexts[0] = alone.contexts[0]
    among.queries[0] = alone.queries[0]
    for p in range(21):
        slot = int(among.tables[0, p // 4]) * 4 + p % 4
        among.kv.rows(0)[slot] = alone.contexts[0][p].reshape(-1)
    torch.testing.assert_close(among.run(0)[0], alone.run(0)[0], rtol=1e-6, atol=1e-6)


def test_a_hole_in_a_table_that_must_be_read_is_a_bug() -> None:
    """The backend refuses to read through an entry that names no block."""
    scene = Scene(Case(sequences=((9, 1),), block_size=4, num_heads=1, num_kv_heads=1, head_dim=4, seed=0))
    scene.tables[0, 1] = -1
    with pytest.raises(AssertionError, match="must read has no block in its table"):
        scene.run(0)


def test_a_window_never_reads_the_blocks_behind_it() -> None:
    """Entries that a sliding window has left may be empty."""
    scene = Scene(Case(sequences=((30, 1), (30, 2)), block_size=4, num_heads=2, num_kv_heads=1, head_dim=4, seed=0))
    scene.tables[:, :5] = -1
    scene.shape = attrs.evolve(scene.shape, windows=(11, 3, 11))
    torch.testing.assert_close(scene.run(2).double(), scene.reference(2), rtol=1e-4, atol=1e-5)


class NoBackend(AttentionBackend):
    """Runs on nothing."""

    name = "nowhere"

    @classmethod
    def unusable(cls, device_type: str) -> str | None:
        return "it needs a machine that is not here"

    def prepare(self, layout: StepLayout) -> Any:
        raise NotImplementedError

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, metadata: Any) -> None:
        raise NotImplementedError

    def attend(self, layer: int, queries: torch.Tensor, metadata: Any) -> torch.Tensor:
        raise NotImplementedError


class EverywhereBackend(NoBackend):
    """Runs on everything."""

    name = "everywhere"

    @classmethod
    def unusable(cls, device_type: str) -> str | None:
        return None


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    monkeypatch.setattr(registry, "_PREFERRED", {})


@pytest.mark.usefixtures("empty_registry")
def test_an_unknown_backend_lists_the_valid_names() -> None:
    """The message is for whoever typed the flag."""
    registry.register_backend("everywhere", lambda: EverywhereBackend)
    with pytest.raises(ConfigurationError) as error:
        choose_backend("flush", "cpu")
    names = ("everywhere", "flash_attn", "flashinfer", "native", "torch", "triton")
    assert str(error.value) == f"--attention-backend 'flush' is not known; valid names are {', '.join(names)}."
    assert backend_names() == names


@pytest.mark.usefixtures("empty_registry")
def test_a_backend_that_cannot_run_here_says_why() -> None:
    """Named, it is refused with its reason; preferred, it is passed over."""
    registry.register_backend("nowhere", lambda: NoBackend, preferred_on=("cpu",))
    with pytest.raises(ConfigurationError) as error:
        choose_backend("nowhere", "cpu")
    assert str(error.value) == ("--attention-backend nowhere cannot be used here: it needs a machine that is not here.")
    assert choose_backend(None, "cpu") is TorchAttention


@pytest.mark.usefixtures("empty_registry")
def test_without_a_name_the_platform_decides() -> None:
    """The preferred backend of a device type, and torch elsewhere or by name."""
    registry.register_backend("everywhere", lambda: EverywhereBackend, preferred_on=("cpu",))
    assert choose_backend(None, "cpu") is EverywhereBackend
    assert choose_backend(None, "cuda") is TorchAttention
    assert choose_backend("torch", "cpu") is TorchAttention
    with pytest.raises(ValueError, match="there is an attention backend 'torch' already"):
        registry.register_backend("torch", lambda: EverywhereBackend)
