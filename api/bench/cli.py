"""`triolet bench …`: the commands, their flags, and nothing heavy until one runs."""

from cyclopts import App

app = App(name="bench", help="Measure a server, or an engine without one. docs/benchmarks.md says how to compare.")
