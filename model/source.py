"""Where a model is read from: a folder, a GGUF file, a hub name, or the built-in default.

Imports no torch. Promises that what it returns exists on this machine, or a `ModelLoadError` of one line that says
what was looked for and how to point at another model. It never runs code that comes with a model: only data files
are downloaded.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import attrs

from ..engine.core.errors import ModelLoadError

Progress = Callable[[str, int, int | None], None]
"""Called with what is being fetched, the bytes so far and the bytes in all (None: unknown); from any thread."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@attrs.frozen(kw_only=True)
class ModelSource:
    """A model that lies on this machine."""

    kind: Literal["folder", "gguf"]
    path: Path
    """The folder in Hugging Face layout, or the GGUF file."""
    name: str
    """What the model is called to clients: the hub name, the folder's name, or the file's without its suffix."""


def resolve_source(name: str | None, progress: Progress | None = None, *, config_only: bool = False) -> ModelSource:
    """Find the model called `name`, fetching it first where need be. Blocks; None is the built-in model.

    `config_only`: of a hub model, only what `read_spec` needs is fetched.

    A path that exists wins over a hub name spelled the same. Raises ModelLoadError.
    """
    if name is None:
        from .builtin import BUILTIN_NAME, fetch_builtin

        return ModelSource(kind="gguf", path=fetch_builtin(progress), name=BUILTIN_NAME)
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path, path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(f"{path} is a file, but not a .gguf one; name the folder that holds the model.")
        return ModelSource(kind="gguf", path=path, name=path.stem)
    if _HUB_NAME.fullmatch(name) and not name.lower().endswith(".gguf"):
        from .hub import fetch_snapshot

        return _folder(fetch_snapshot(name, progress, config_only=config_only), name)
    raise ModelLoadError(
        f"{name} does not exist: a model is a local folder (safetensors), a .gguf file or a hub name (owner/name)."
    )


def _folder(path: Path, name: str) -> ModelSource:
    """The folder itself, or the one GGUF file of a folder that has no config.json."""
    if (path / "config.json").is_file():
        return ModelSource(kind="folder", path=path, name=name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource(kind="gguf", path=files[0], name=name)
    if files:
        raise ModelLoadError(f"{path} holds {len(files)} GGUF files: name one, such as {files[0]}.")
    raise ModelLoadError(f"{path} holds neither a config.json nor a .gguf file: it is not a model folder.")
