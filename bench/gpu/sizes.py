"""How large everything is in a run of the GPU bench, and in a dry one."""

import attrs
import torch

from triolet.model.spec import ModelSpec

from .scene import Case
from .serving import Load
from .speed import Card


@attrs.frozen(kw_only=True)
class Sizes:
    """Of all sections."""

    dtype: torch.dtype
    times: int
    """How often a kernel is timed."""
    checked: list[Case]
    width: int
    vocab: int
    copy_bytes: int
    product: int
    attention: dict[str, Case]
    steps_name: str
    steps_spec: ModelSpec
    batches: tuple[int, ...]
    context: int
    steps: int
    served_name: str
    served_spec: ModelSpec
    load: Load
    server_flags: tuple[str, ...] = ()
    dry: bool = False

    def quantizations(self, card: Card) -> tuple[str, ...]:
        """fp8 where the card has it."""
        return ("none", "fp8") if card.fp8_flops or self.dry else ("none",)


def _spec(*, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocab: int, tied: bool) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        tied_embeddings=tied,
        rope_theta=500000.0,
        eos_token_ids=(0,),
    )


_LLAMA = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}

FULL = Sizes(
    dtype=torch.bfloat16,
    times=30,
    checked=[
        Case(sequences=((1, 1), (1, 17), (1, 4096), (1, 300)), **_LLAMA),
        Case(sequences=((1, 30000),), **_LLAMA),
        Case(sequences=((7, 7), (1, 100), (200, 900), (513, 513)), **_LLAMA),
        Case(sequences=((1, 2000), (300, 1500)), window=256, **_LLAMA),
        Case(sequences=((1, 700), (33, 500)), fp8=True, **_LLAMA),
        Case(sequences=((1, 700), (33, 500)), num_heads=9, num_kv_heads=3, head_dim=64, block_size=32),
        Case(sequences=((1, 700), (33, 500)), num_heads=16, num_kv_heads=16, head_dim=80),
        Case(sequences=((1, 700), (33, 500)), num_heads=8, num_kv_heads=4, head_dim=256, block_size=64),
    ],
    width=4096,
    vocab=128256,
    copy_bytes=2 << 30,
    product=8192,
    attention={
        "64 × 4k": Case(sequences=((1, 4096),) * 64, **_LLAMA),
        "64 × 4k, fp8": Case(sequences=((1, 4096),) * 64, fp8=True, **_LLAMA),
        "256 × 1k": Case(sequences=((1, 1024),) * 256, **_LLAMA),
        "1 × 64k": Case(sequences=((1, 65536),), **_LLAMA),
    },
    steps_name="Llama 8B's shape",
    steps_spec=_spec(layers=32, hidden=4096, inner=14336, heads=32, kv_heads=8, vocab=128256, tied=False),
    batches=(1, 16, 64, 256),
    context=512,
    steps=40,
    served_name="a model of Llama 1B's shape",
    served_spec=_spec(layers=16, hidden=2048, inner=8192, heads=32, kv_heads=8, vocab=128256, tied=True),
    load=Load(streams=128, requests=384, input_len=256, output_len=128),
    server_flags=("--max-model-len", "2048", "--max-num-seqs", "128"),
)

_TINY = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}

DRY = Sizes(
    dtype=torch.float32,  # the interpreter rounds bfloat16 wrongly
    times=1,
    checked=[
        Case(sequences=((1, 1), (1, 17), (3, 40)), **_TINY),
        Case(sequences=((1, 33), (5, 30)), window=9, **_TINY),
    ],
    width=96,
    vocab=1000,
    copy_bytes=1 << 16,
    product=64,
    attention={"2 × 32": Case(sequences=((1, 32),) * 2, **_TINY)},
    steps_name="a tiny model",
    steps_spec=_spec(layers=2, hidden=128, inner=128, heads=4, kv_heads=2, vocab=512, tied=False),
    batches=(1, 3),
    context=24,
    steps=3,
    served_name="a tiny model",
    served_spec=_spec(layers=2, hidden=64, inner=96, heads=4, kv_heads=2, vocab=512, tied=True),
    load=Load(
        streams=4,
        requests=6,
        input_len=12,
        output_len=5,
        batching={"page_size": 16, "num_blocks": 32, "max_batch_tokens": 64},
    ),
    server_flags=(
        "--max-model-len",
        "128",
        "--attention-backend",
        "torch",
        "--kv-cache-memory",
        "8M",
        "--dtype",
        "float32",
    ),
    dry=True,
)
