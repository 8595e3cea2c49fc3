"""`triolet bench`: load for a server, measures of it, and both offline.

A client of OpenAI's protocol, for any server that speaks it. Imports the engine's front door for the offline commands,
and nothing else of ours; everything heavy only when a command runs. It never changes what it measures.
"""
