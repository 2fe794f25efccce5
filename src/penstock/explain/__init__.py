"""Why a job has not run, from what the store knows.

``app.explain(id)`` takes one look at the store and says every reason that applies, the weightiest
first, each with what to do about it. What one look cannot tell is whether a worker that has a lease
still lives: that is seen by watching for a beat, for as long as the caller allows.
"""

from penstock.explain.explain import explain
from penstock.explain.reasons import Code, Explanation, Reason

__all__ = ["Code", "Explanation", "Reason", "explain"]
