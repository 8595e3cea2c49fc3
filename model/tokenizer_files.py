"""Asks transformers once what a model's tokenizer is, and keeps the answer in the cache folder.

Which class a model's tokenizer has, what it adds in front of a text, how a GGUF vocabulary becomes one: transformers
knows, and equal results are wanted, so it is asked. But importing it costs 2 s at a start, so its answer is stored as
plain data (tokenizer.json and settings.json) and later starts read that in 0.1 s. The key covers everything the answer
depends on: the model's files and the versions of the libraries. No code that comes with a model is run.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, pre_tokenizers

from ..engine.core.errors import ModelLoadError
from .cache import cache_folder
from .source import ModelSource

_log = logging.getLogger(__name__)

_FORMAT: Final = "1"  # to be counted up when what is stored changes
_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "config.json",
)
_ANY_OF: Final = {"tokenizer.json", "tokenizer.model", "tokenizer.model.v3", "tekken.json", "vocab.json", "vocab.txt"}


def stored_tokenizer(source: ModelSource) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and its settings: `chat_template` and `special_tokens`. Raises ModelLoadError."""
    place = cache_folder() / "tokenizers" / _key(source)
    try:
        return Tokenizer.from_file(str(place / "tokenizer.json")), json.loads((place / "settings.json").read_bytes())
    except Exception as error:  # missing, or damaged: tokenizers raises bare Exceptions
        _log.debug("no stored tokenizer at %s: %s", place, error)
    tokenizer, settings = _ask_transformers(source)
    try:
        _store(place, tokenizer, settings)
    except OSError as error:
        _log.warning("The tokenizer cannot be kept at %s, so the next start will be slow too: %s", place, error)
    return tokenizer, settings


def _key(source: ModelSource) -> str:
    """A digest of a folder's tokenizer files, or of a GGUF file's path, size and time of change."""
    digest = hashlib.sha256(_FORMAT.encode())
    for library in ("transformers", "tokenizers"):
        digest.update(importlib.metadata.version(library).encode() + b"\0")
    if source.kind == "gguf":
        stat = source.path.stat()
        digest.update(f"{source.path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        return digest.hexdigest()[:32]
    found = [name for name in _FILES if (source.path / name).is_file()]
    if not _ANY_OF & set(found):
        raise ModelLoadError(f"{source.path}: no tokenizer: there is none of {', '.join(sorted(_ANY_OF))}.")
    more = sorted((source.path / "additional_chat_templates").glob("*.jinja"))
    for path in [*(source.path / name for name in found), *more]:
        data = path.read_bytes()
        digest.update(f"{path.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:32]


def _ask_transformers(source: ModelSource) -> tuple[Tokenizer, dict[str, Any]]:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        if source.kind == "gguf":
            # What AutoTokenizer ends at too, but it reads the whole file first: 0.2 s instead of 3.7.
            loaded = PreTrainedTokenizerFast.from_pretrained(str(source.path.parent), gguf_file=source.path.name)
        else:
            loaded = AutoTokenizer.from_pretrained(str(source.path), local_files_only=True, trust_remote_code=False)
        tokenizer: Tokenizer = loaded.backend_tokenizer
        settings = {"chat_template": loaded.chat_template, "special_tokens": dict(loaded.special_tokens_map)}
        json.dumps(settings)
    except Exception as error:
        said = " ".join(str(error).split())
        raise ModelLoadError(f"{source.path}: the tokenizer cannot be read: {type(error).__name__}: {said}") from error
    if source.kind == "gguf":
        _correct_digits(source.path, tokenizer)
    return tokenizer, settings


def _correct_digits(path: Path, tokenizer: Tokenizer) -> None:
    """Split digits off one by one before anything else, where the file says so and transformers does not do it.

    SmolLM's vocabulary was learned that way (`tokenizer.ggml.pre` is smollm; llama.cpp and the model's own
    tokenizer.json do it). It shows in runs of spaces before a digit, as in the indentation of code.
    """
    from .gguf_file import read_gguf

    if read_gguf(path).metadata.get("tokenizer.ggml.pre") == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])


def _store(place: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Write beside, then rename, so that no reader sees half of it; what was there, if damaged, goes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
    try:
        tokenizer.save(str(fresh / "tokenizer.json"), pretty=False)
        (fresh / "settings.json").write_text(json.dumps(settings))
        shutil.rmtree(place, ignore_errors=True)
        os.rename(fresh, place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
