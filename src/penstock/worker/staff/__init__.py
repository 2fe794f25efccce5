"""The supervisor of worker processes, and what its staff says to it."""
