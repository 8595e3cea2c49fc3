"""The engine: requests, scheduling, and the actors that carry a request from text to text.

`core/` is pure: it imports `kvcache` and neither trio nor torch; `parsing/` is pure too. Everything else here may
import trio; only `device.py` and `nice_thread.py` make threads of their own. `build.py` wires a model to an engine,
`loading.py` loads it where its steps will run, `shape.py` reads its shape alone; no other file here imports `model`.
"""
