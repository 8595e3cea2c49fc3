"""The page: GET /ui, a chat and a picture of the engine's inside, in plain modules that the package brings along.

It is a client like any other: it asks the routes that others ask, with the key that its reader gives. It may import the
api and the engine's messages; it fetches nothing from anywhere else, and its headers forbid it to
(Content-Security-Policy). The files hold no secret, and still take a key where one is set: see `entrance.py`.
"""
