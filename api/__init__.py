"""HTTP and the command line: the OpenAI protocol over hypercorn on trio, and the `triolet` command.

Imports the engine's public handle and its message types; never the scheduler, the cache or torch.
"""
