"""Asking a server from the command line: `triolet chat`, `triolet complete`, and what `triolet run-batch` shares.

A client of OpenAI's protocol: of any server at a URL, or of our own around an engine in this process, by the same
requests over a socket file. Imports the composition (`api/serve.py`) and the engine's portal; h11 and trio when a
command runs. Leaving a request closes its connection, which is what ends it at the server.
"""
