"""Jobs that are nothing special: the way in that is short on every engine with tables."""

from __future__ import annotations

from penstock.core.job import Draft


def is_plain(draft: Draft) -> bool:
    """The draft says no more than which task to run, in which queue, how urgently and with what."""
    return (
        draft.delay <= 0
        and draft.run_at is None
        and draft.expires_in is None
        and draft.key is None
        and draft.correlation_id is None
        and not draft.tags
        and draft.name is None
        and not draft.at_most_once
        and draft.unique is None
        and draft.unique_until == "done"
        and draft.remember <= 0
    )
