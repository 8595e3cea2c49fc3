"""Memory: KV blocks, block tables, the prefix index, and the arithmetic of their size.

Imports the standard library and attrs, and nothing of ours. It promises the laws K1 to K14 (see docs/allocator-spec.md
and `property_tests/`), in O(blocks touched) per operation. It never touches a tensor: a block is a number here.
"""
