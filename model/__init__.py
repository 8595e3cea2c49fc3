"""Torch: reading models, running them over a paged KV cache, sampling.

Imports the message types of `engine.core` (plan, params, errors) and `kvcache` arithmetic; never the scheduler, never
trio. Everything here runs in one thread, the device thread, and is called with a `StepPlan` to answer a `StepResult`.
"""
