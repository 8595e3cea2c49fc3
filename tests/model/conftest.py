"""The built-in model, fetched once by the real code into the user's own cache; and caches that tests may fill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from triolet.model import row_kernels
from triolet.model.native.library import load_library
from triolet.model.native.sampling import NativeSampler
from triolet.model.source import ModelSource, resolve_source
from triolet.model.tokenizer import ChatTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def builtin_source() -> ModelSource:
    """The built-in model on this machine."""
    return resolve_source(None)


@pytest.fixture(scope="session")
def builtin_gguf(builtin_source: ModelSource) -> Path:
    """The built-in model's GGUF file."""
    return builtin_source.path


@pytest.fixture(scope="session")
def builtin_tokenizer(builtin_source: ModelSource) -> ChatTokenizer:
    """The built-in model's tokenizer."""
    return load_tokenizer(builtin_source)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone, not there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRIOLET_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module", params=["torch", "native"])
def row_kernels_or_none(request: pytest.FixtureRequest) -> Iterator[None]:
    """What holds for rows of logits holds for both: set for this thread, and put back."""
    before = row_kernels.in_use()
    if request.param == "torch":
        row_kernels.use(None)
    else:
        library = load_library()
        library.resize_pool(2)
        row_kernels.use(NativeSampler(library, num_threads=2))
    yield
    row_kernels.use(before)
