"""A model's shape, read without its weights: for `triolet plan` and `triolet simulate`.

Beside build.py and loading.py it imports the model room, and only those of its parts that bring no torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.spec import ModelSpec


def read_shape(model: str | None) -> tuple[str, "ModelSpec"]:
    """The name that clients would see, and the spec, of a folder, a GGUF file, a hub model (its configuration alone is
    fetched) or the built-in one. Blocks. Raises ModelLoadError."""
    from ..model.source import resolve_source
    from ..model.weights import read_spec

    source = resolve_source(model, config_only=True)
    return source.name, read_spec(source)
