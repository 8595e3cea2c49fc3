"""What can be read from a model's source: its spec and its weights, whatever the format.

Reading the spec imports no torch; reading the weights does, on use. Pickled weights are refused: they can run code.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .source import ModelSource
from .spec import ModelSpec

if TYPE_CHECKING:
    import torch


def read_spec(source: ModelSource) -> ModelSpec:
    """The shape of the model. Reads headers and configuration alone. Raises ModelLoadError."""
    if source.kind == "gguf":
        from .gguf_file import read_gguf
        from .gguf_spec import spec_of_gguf

        return spec_of_gguf(read_gguf(source.path))
    from .hf_config import spec_of_folder

    return spec_of_folder(source.path)


def stored_bytes(source: ModelSource) -> int | None:
    """What `read_weights` gives in all, but for what it skips; None where that is not known before it is read."""
    if source.kind != "folder":
        return None
    return sum(path.stat().st_size for path in source.path.glob("*.safetensors")) or None


def read_weights(source: ModelSource, spec: ModelSpec) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Each weight with its Hugging Face name, in the file's order and in a floating type of the file's choosing.

    The tensors may be mapped from the file: convert or copy them before writing to them. Raises ModelLoadError, also
    midway, naming the file and the tensor.
    """
    if source.kind == "gguf":
        from .gguf_file import read_gguf
        from .gguf_weights import gguf_weights

        return gguf_weights(read_gguf(source.path), spec)
    from .safetensors_file import folder_weights

    return folder_weights(source.path, spec)
