"""What fewer bits cost: the built-in model in every format against the same model in float32 torch.

    python -m bench.accuracy

Prints, over every position of some texts (a chunk, then single steps): how often the most likely token is the same,
and the Kullback-Leibler divergence of the next token's distribution from float32's. The file's own weights are 4-bit
(Q4_1), so int4 here reads a grid that the weights already stand on.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from triolet.model.forward import ForwardPass
from triolet.model.source import resolve_source
from triolet.model.tokenizer import load_tokenizer

from .native_steps import VARIANTS, logits_of, native_forward, torch_forward

NUM_BLOCKS = 64
TEXTS = (
    "The lighthouse keeper climbed the stairs at dusk, as he had done for thirty years, and lit the lamp. Out on the "
    "water a small boat turned towards the harbour, its crew glad of the light.",
    'def mean(values):\n    """The arithmetic mean."""\n    if not values:\n        raise ValueError(\'no values\')\n'
    "    return sum(values) / len(values)\n\n\ndef variance(values):\n    centre = mean(values)\n",
    "<|im_start|>user\nWhat is the capital of France, and what is it known for?<|im_end|>\n<|im_start|>assistant\nThe "
    "capital of France is Paris. It is known for the Eiffel Tower, the Louvre and its cafés.<|im_end|>\n",
    "Water boils at 100 degrees Celsius at sea level. At higher altitudes the pressure of the air is lower, and so is "
    "the temperature at which water boils: on Mount Everest it is about 70 degrees.",
)
ROOT = Path(__file__).parents[1]
FILES = ("LICENSE", "ARCHITECTURE.md", "docs/cancellation.md", "triolet/kvcache/pool.py", "triolet/engine/loop.py")
"""Longer texts of several kinds: the beginning of each, in pieces."""
PIECES, PIECE_TOKENS = 2, 192


def all_texts(encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The token ids of every text."""
    pieces = []
    for name in FILES:
        tokens = encode((ROOT / name).read_text()[: 16 * PIECES * PIECE_TOKENS])
        pieces += [tokens[i * PIECE_TOKENS : (i + 1) * PIECE_TOKENS] for i in range(PIECES)]
    return [encode(text) for text in TEXTS] + pieces


def main() -> None:
    source = resolve_source(None)
    texts = all_texts(load_tokenizer(source).encode)
    exact_forward = torch_forward(source, torch.float32, num_blocks=NUM_BLOCKS)
    exact = torch.cat([logits_of(exact_forward, tokens, num_blocks=NUM_BLOCKS) for tokens in texts])
    print(f"{len(exact)} positions\n{'format':<28}{'same top-1':>12}{'KL mean':>10}{'KL max':>10}")
    makers: dict[str, Callable[[], ForwardPass]] = {
        "torch bfloat16": partial(torch_forward, source, torch.bfloat16, num_blocks=NUM_BLOCKS)
    }
    for variant in VARIANTS:
        makers[variant.name] = partial(native_forward, source, variant, num_blocks=NUM_BLOCKS, threads=2)
    for name, make in makers.items():
        forward = make()
        logits = torch.cat([logits_of(forward, tokens, num_blocks=NUM_BLOCKS) for tokens in texts])
        p, q = exact.double().log_softmax(-1), logits.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1)
        same = (exact.argmax(-1) == logits.argmax(-1)).sum().item()
        print(f"{name:<28}{f'{same}/{len(exact)}':>12}{kl.mean():>10.5f}{kl.max():>10.4f}", flush=True)


if __name__ == "__main__":
    main()
