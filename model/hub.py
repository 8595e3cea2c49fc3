"""Fetches a model's data files from the Hugging Face hub, or finds them in its cache.

Imports huggingface_hub on use. Promises a folder, or a `ModelLoadError` of one line. It asks for configuration,
tokenizer and safetensors files alone: never for code, never for pickled weights.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.core.errors import ModelLoadError

if TYPE_CHECKING:
    from .source import Progress

_WANTED = ["*.json", "*.jinja", "*.safetensors", "*.model", "merges.txt", "vocab.txt", "*.tiktoken"]
_UNWANTED = ["*/*", "consolidated*.safetensors", "*.bin.index.json"]


def fetch_snapshot(name: str, progress: "Progress | None", *, config_only: bool = False) -> Path:
    """The folder that holds the files of hub model `name`; without its weights where only the configuration is asked
    for. Blocks. Raises ModelLoadError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    wanted = ["config.json", "generation_config.json"] if config_only else _WANTED
    bar = _reporting_bar(name, progress) if progress else None
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=_UNWANTED, tqdm_class=bar))
    except GatedRepoError:
        why = "access to it must be asked for on its page first, and HF_TOKEN set"
    except RepositoryNotFoundError:
        why = "there is no such model there (a private one needs HF_TOKEN)"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        why = "the hub cannot be reached, and the model is not in its local cache"
    except HFValidationError as error:
        why = str(error)
    except (HfHubHTTPError, OSError) as error:
        why = f"{type(error).__name__}: {error}"
    one_line = " ".join(why.split())
    raise ModelLoadError(
        f"The hub model {name} cannot be fetched: {one_line.rstrip('.')}. "
        "A local model is named by its folder or its .gguf file."
    )


def _reporting_bar(name: str, progress: "Progress") -> type[Any]:
    """A progress bar class that draws nothing and tells `progress` the bytes; other units are left out."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The count of files is a bar too; huggingface_hub 2 counts bytes as they arrive and as they are written.
            self._counts_bytes = kwargs.get("unit") == "B" and not str(kwargs.get("name")).endswith(".transfer")
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            self.total = kwargs.get("total")

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self._counts_bytes:
                progress(f"Fetching {name}", int(self.n), int(self.total) if self.total else None)
            return None

    return Bar
