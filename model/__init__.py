"""Torch: reading models, running them over a paged KV cache, sampling.

Imports the message types of `engine.core` (plan, params, errors, ids, logprobs, grammar, pooling, thinking) and
`kvcache` arithmetic, never the scheduler, never trio. What computes a step belongs to one thread, the device thread,
and is called with a `StepPlan` to answer a `StepResult`; a model is found and its tokenizer used in others
(`source.py`, `tokenizer.py`, `grammar.py`).
"""
