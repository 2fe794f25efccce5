"""Why a job has not run, from what the store knows.

``app.explain(id)`` reads the store once and gives every reason that applies, the weightiest first,
each with what to do about it. What one read cannot tell is whether a worker that has a lease still
lives: its beat is watched, for as long as the caller allows.
"""

from penstock.explain.explain import explain
from penstock.explain.reasons import Code, Explanation, Reason

__all__ = ["Code", "Explanation", "Reason", "explain"]
