"""The pure core: requests, the scheduler, and the messages between the actors.

Imports `kvcache`, the standard library and attrs; never trio, never torch. Time, ids and randomness come in as
arguments, so that a run can be replayed exactly.
"""
