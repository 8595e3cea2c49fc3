"""The Responses API: `POST /v1/responses`, and what can be asked of a response by its id.

A request becomes a chat (`requests.py`, `items.py`) and goes the chats' way through gate, nursery and engine;
`document.py` and `output.py` write its answer as items and events; `registry.py` and `store.py` know those that run and
those that ended. Nothing here waits for a client, and nothing but `views.py` knows Quart.
"""
