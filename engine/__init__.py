"""The engine: requests, scheduling, and the actors that carry a request from text to text.

`core/` is pure: it imports `kvcache` and neither trio nor torch. Everything else here may import trio; only
`device.py` and `nice_thread.py` make threads of their own. `build.py` is the one place that wires a model to an engine.
"""
