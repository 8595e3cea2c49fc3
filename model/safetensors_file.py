"""Reads the weights of a folder in Hugging Face layout: one safetensors file, or several with an index.

Imports safetensors (which maps the files: the tensors are views of them, no second copy is made) on use. Pickled
weights are refused. Every error names the file, and the tensor where there is one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.core.errors import ModelLoadError
from .spec import ModelSpec

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_BUFFER_SUFFIXES = (".rotary_emb.inv_freq",)  # old checkpoints hold them; they follow from the config


def folder_weights(folder: Path, spec: ModelSpec) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Each weight in `folder`, mapped from its file, in the dtype of the file. Raises ModelLoadError."""
    for path, names in _files(folder):
        yield from _file_weights(path, names, spec)


def _files(folder: Path) -> list[tuple[Path, set[str] | None]]:
    """The files to read, with the tensors that each must hold (None: whatever it holds)."""
    if (folder / INDEX).is_file():
        return _indexed(folder / INDEX)
    if (folder / SINGLE).is_file():
        return [(folder / SINGLE, None)]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return [(found[0], None)]
    if found:
        raise ModelLoadError(f"{folder}: {len(found)} safetensors files, but no {INDEX} to say what each holds.")
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")])
    if pickled:
        raise ModelLoadError(
            f"{pickled[0]}: pickled weights are refused, because reading them can run code; convert to safetensors."
        )
    raise ModelLoadError(f"{folder}: no weights: there is neither {SINGLE} nor {INDEX}.")


def _indexed(index: Path) -> list[tuple[Path, set[str] | None]]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        shards: dict[str, set[str]] = {}
        for tensor, file in weight_map.items():
            shards.setdefault(file, set()).add(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"{index}: not an index of safetensors files ({type(error).__name__}: {error})."
        ) from error
    for file in shards:
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelLoadError(f"{index}: {file!r} is not the name of a safetensors file beside it.")
        if not (index.parent / file).is_file():
            raise ModelLoadError(f"{index.parent / file}: missing, though {index.name} places tensors in it.")
    return [(index.parent / file, names) for file, names in sorted(shards.items())]


def _file_weights(path: Path, wanted: set[str] | None, spec: ModelSpec) -> Iterator[tuple[str, "torch.Tensor"]]:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path}: damaged or truncated safetensors file: {error}.") from error
    with file:
        held: list[str] = file.keys()  # type: ignore[no-untyped-call]
        if absent := sorted((wanted or set()) - set(held)):
            raise ModelLoadError(f"{path}: tensor {absent[0]} is missing, though {INDEX} places it here.")
        for name in held:
            if name.endswith(_BUFFER_SUFFIXES) or (name == "lm_head.weight" and spec.tied_embeddings):
                continue
            try:
                tensor: torch.Tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]
            except SafetensorError as error:
                raise ModelLoadError(f"{path}: tensor {name} cannot be read: {error}.") from error
            if not tensor.is_floating_point():
                raise ModelLoadError(f"{path}: tensor {name} holds {tensor.dtype}; only floating types are read.")
            yield name, tensor
