"""flash_attn and flashinfer behind our interface: stand-ins with their signatures compute what they are given, and the
tokens are those of the torch backend."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.running import Driver, our_model, reference_model
from triolet.engine.core.errors import ConfigurationError
from triolet.model.attention import choose_backend
from triolet.model.attention.flash_attn_backend import FlashAttention
from triolet.model.attention.flashinfer_backend import FlashInfer
from triolet.model.llama import LlamaModel


def attention(q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int) -> Tensor:
    """Causal, the last query with the last key; `window` keys back, below 0 all."""
    sharing = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(sharing, 1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    at = torch.arange(len(keys) - len(q), len(keys))[:, None]
    seen = torch.arange(len(keys)) <= at
    if window >= 0:
        seen &= torch.arange(len(keys)) >= at - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """As flash_attn 2.8 declares it."""
    assert causal
    assert block_table is not None
    assert softmax_scale is not None
    assert all(t.dtype is torch.int32 for t in (cu_seqlens_q, cu_seqlens_k, block_table))
    assert k.shape[1] % 256 == 0
    assert k.stride(-1) == 1
    out = torch.full_like(q, float("nan"))
    lengths = []
    for i in range(len(cu_seqlens_q) - 1):
        queries = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        length = int(cu_seqlens_k[i + 1] - cu_seqlens_k[i])
        pages = block_table[i, : -(-length // k.shape[1])].long()
        keys, values = (x[pages].flatten(0, 1)[:length] for x in (k, v))
        out[queries] = attention(q[queries], keys, values, softmax_scale, window_size[0])
        lengths.append((queries.stop - queries.start, length))
    assert (max_seqlen_q, max_seqlen_k) == tuple(max(column) for column in zip(*lengths, strict=True))
    return out


class BatchPrefillWithPagedKVCacheWrapper:
    """As flashinfer 0.6 declares it, as far as it is called."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert kv_layout == "NHD"

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        assert causal
        assert (num_qo_heads, num_kv_heads, q_data_type) == (4, 2, torch.float32)
        self.tables = [t.tolist() for t in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len)]
        self.indices, self.page_size, self.scale, self.window = paged_kv_indices, page_size, sm_scale, window_left

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        out = torch.full_like(q, float("nan"))
        starts, page_starts, last = self.tables
        for i in range(len(starts) - 1):
            pages = self.indices[page_starts[i] : page_starts[i + 1]].long()
            length = (len(pages) - 1) * self.page_size + last[i]
            keys, values = (x[pages].flatten(0, 1)[:length] for x in paged_kv_cache)
            queries = slice(starts[i], starts[i + 1])
            assert self.scale is not None
            out[queries] = attention(q[queries], keys, values, self.scale, self.window)
        return out


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are there, and run on the CPU."""
    for name, item in (
        ("flash_attn", flash_attn_varlen_func),
        ("flashinfer", BatchPrefillWithPagedKVCacheWrapper),
    ):
        module = types.ModuleType(name)
        setattr(module, item.__name__, item)
        monkeypatch.setitem(sys.modules, name, module)
    for backend in (FlashAttention, FlashInfer):
        monkeypatch.setattr(backend, "unusable", classmethod(lambda cls, device_type: None))


def tokens(model: LlamaModel, **options: Any) -> list[list[int]]:
    """Prompts in chunks, beside decodes, past the window and past a page."""
    driver = Driver(model, num_blocks=64, **options)
    names = [driver.join([(i * 17 + j * 31) % 131 for j in range(length)]) for i, length in enumerate((3, 30, 11))]
    return [driver.generate(name, 12, limit=13) for name in names]


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize(("backend", "block_size"), [("flash_attn", 256), ("flashinfer", 4), ("flashinfer", 16)])
@pytest.mark.usefixtures("libraries")
def test_the_tokens_are_those_of_the_torch_backend(family: str, backend: str, block_size: int) -> None:
    """Full attention and a sliding window."""
    model = our_model(reference_model(family, **({"sliding_window": 9} if family == "mistral" else {})))
    expected = tokens(model)
    assert tokens(model, attention_backend=backend, block_size=block_size) == expected


@pytest.mark.usefixtures("libraries")
def test_flash_attn_says_which_blocks_it_reads() -> None:
    """The flag and the number."""
    with pytest.raises(ConfigurationError) as caught:
        Driver(our_model(reference_model("llama")), block_size=16, attention_backend="flash_attn")
    assert caught.value.message == (
        "--attention-backend flash_attn reads pages of 256 tokens: set --block-size 256, or choose --attention-backend "
        "triton."
    )


@pytest.mark.parametrize(
    ("name", "find", "reason"),
    [
        ("flash_attn", None, "flash_attn is not installed (pip install flash-attn --no-build-isolation)"),
        ("flashinfer", None, "flashinfer is not installed (pip install flashinfer-python)"),
        ("flash_attn", "there", "it runs on an NVIDIA GPU, not on cpu"),
        ("flashinfer", "there", "it runs on an NVIDIA GPU, not on cpu"),
    ],
)
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, name: str, find: str | None, reason: str) -> None:
    """What to install, or where it runs."""
    find_spec: Callable[[str], str | None] = lambda module: find  # noqa: E731
    monkeypatch.setattr(f"triolet.model.attention.{name}_backend.find_spec", find_spec)
    with pytest.raises(ConfigurationError) as caught:
        choose_backend(name, "cpu")
    assert caught.value.message == f"--attention-backend {name} cannot be used here: {reason}."
