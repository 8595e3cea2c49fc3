"""The live view: what GET /v1/live sends, while somebody watches.

    observer of the engine ── tap.py ──┐
    engine.inside (a look)  ───────────┴─▶ sampler.py ──▶ hub.py ──▶ a watcher each ──▶ route.py (SSE)

One sampler serves all watchers, 10 times a second at most and for a fiftieth of the loop's time at most. A watcher gets
a snapshot, then differences; one that reads slowly misses some and gets a snapshot again, so it holds one event. While
nobody watches, nothing is subscribed, tapped or computed.
"""
