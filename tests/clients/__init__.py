"""Programs that people use, each talking to a server that was started for real on the built-in model.

A script takes the base URL, asks, checks, and exits with 0. `test_clients.py` runs them.
"""
