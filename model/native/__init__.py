"""The native step: a whole step of the model in one call of C++, for machines without a GPU.

Python writes a model down once as a tape of operations, packs its weights, and then runs a step in one call without the
GIL. The C++ is plain C++17, compiled at the first start by the system's compiler and kept in the user's cache folder.
Imports of the rest of the model room what describes a model and a step (spec, places, rotary, batch); never the engine.
"""
