"""Triolet: an LLM serving engine on trio.

This module only names what is public. `LLM` and `open_engine` are imported on first use, because they bring torch.
"""

from typing import TYPE_CHECKING, Any

from .engine.core.errors import TrioletError
from .engine.core.params import SamplingParams

if TYPE_CHECKING:
    from .engine.config import EngineConfig
    from .engine.engine import Engine
    from .engine.llm import LLM
    from .engine.open import open_engine

__version__ = "0.1.0"
__all__ = ["LLM", "Engine", "EngineConfig", "SamplingParams", "TrioletError", "__version__", "open_engine"]

_LAZY = {"LLM": "llm", "Engine": "engine", "EngineConfig": "config", "open_engine": "open"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'triolet' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".engine.{_LAZY[name]}", __name__), name)
