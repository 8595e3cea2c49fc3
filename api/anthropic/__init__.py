"""Anthropic's Messages API: `POST /v1/messages`, and its count of tokens.

A request becomes a chat (`requests.py`, `turns.py`) and goes the chats' way through gate, nursery and engine;
`message.py` writes its answer as blocks and events. Its errors have Anthropic's shape (`../dialect.py`).
"""
