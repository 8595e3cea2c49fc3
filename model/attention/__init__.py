"""Attention over the paged KV cache: a narrow interface, a registry by name, and the backends behind it.

A backend sees tables, lengths, queries, keys and values; never requests, plans or the scheduler.
"""

from .interface import AttentionBackend, AttentionShape, StepLayout
from .registry import backend_names, choose_backend, register_backend

__all__ = [
    "AttentionBackend",
    "AttentionShape",
    "StepLayout",
    "backend_names",
    "choose_backend",
    "register_backend",
]
