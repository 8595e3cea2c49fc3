"""Worked examples for docs/allocator-spec.md: allocators to point the suite at."""
