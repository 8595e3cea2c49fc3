"""How long a test may take before it counts as hanging."""

REAL_LIMIT_S = 300
"""No test comes near it, and none is about it: a machine may be slow, or busy with something else."""
