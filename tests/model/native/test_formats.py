"""What fewer bits cost: the built-in model in every format against itself in float32."""

from collections.abc import Sequence

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from tests.model.native.steps import Sequences, native_forward
from triolet.model.native.library import Format, Library
from triolet.model.native.weights import Packed
from triolet.model.source import ModelSource
from triolet.model.tokenizer import ChatTokenizer
from triolet.model.weights import read_spec, read_weights

TEXT = (
    "The lighthouse keeper climbed the stairs at dusk, as he had done for thirty years, and lit the lamp. Out on the "
    "water a small boat turned towards the harbour. In Python, def area(width, height): return width * height. The "
    "capital of France is Paris, and the largest planet of the solar system is Jupiter."
)


def logits_of(library: Library, source: ModelSource, tokens: Sequence[int], format: Format, kv: Format) -> torch.Tensor:
    """Two chunks, then single steps, as a request has them."""
    spec = read_spec(source)
    forward = native_forward(library, spec, read_weights(source, spec), format, kv=kv)
    pieces = [[20], [len(tokens) - 28], *[[1]] * 8]
    return Sequences(forward, [tokens]).run(pieces)[0]


@pytest.fixture(scope="module")
def tokens(builtin_tokenizer: ChatTokenizer) -> list[int]:
    return builtin_tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def exact(library: Library, builtin_source: ModelSource, tokens: list[int]) -> torch.Tensor:
    return logits_of(library, builtin_source, tokens, Format.FLOAT32, Format.FLOAT32)


@pytest.mark.parametrize(
    ("format", "kv", "most_kl", "least_agreement"),
    [
        (Format.BFLOAT16, Format.BFLOAT16, 0.001, 0.95),
        (Format.BFLOAT16, Format.INT8, 0.003, 0.90),
        (Format.INT8, Format.BFLOAT16, 0.015, 0.90),
        (Format.INT4, Format.INT8, 0.015, 0.90),
    ],
)
def test_the_loss_is_within_its_bound(
    library: Library,
    builtin_source: ModelSource,
    tokens: list[int],
    exact: torch.Tensor,
    format: Format,
    kv: Format,
    most_kl: float,
    least_agreement: float,
) -> None:
    """Mean KL divergence from float32, and how often the most likely token is the same."""
    logits = logits_of(library, builtin_source, tokens, format, kv)
    p, q = exact.double().log_softmax(-1), logits.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    agreement = (exact.argmax(-1) == logits.argmax(-1)).double().mean()
    assert kl.mean() <= most_kl
    assert agreement >= least_agreement


def test_a_matrix_takes_the_bytes_of_its_format(library: Library) -> None:
    """Four bytes a weight, two, one and a scale by output, or half and a grid by 32 inputs beside the int8."""
    weight = torch.randn(256, 512)
    bits = {format: Packed(library, format, weight).num_bytes * 8 / weight.numel() for format in Format}
    assert bits == {Format.FLOAT32: 32, Format.BFLOAT16: 16, Format.INT8: 8 + 32 / 512, Format.INT4: 13 + 32 / 512}


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
def test_four_bit_weights_of_a_file_are_kept_as_they_are(library: Library, kind: GGMLQuantizationType) -> None:
    """Of a matrix on a 4-bit grid only the rounding of the grid to half floats is lost; of others more."""
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    on_grid = torch.from_numpy(quants.dequantize(quants.quantize(weight.numpy(), kind), kind)).reshape(64, 64)
    for matrix, limit in ((on_grid, 0.002), (weight, 0.25)):
        packed = Packed(library, Format.INT4, matrix)
        assert (packed.unpacked() - matrix).abs().max() <= limit
