"""Checks of what clients have found, by the engine's own environment: they compute the same with another program."""
