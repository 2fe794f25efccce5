"""The demo: what it does when things go wrong."""

from __future__ import annotations

import pytest

from penstock import demo


def test_a_demo_whose_worker_has_died_ends(tmp_path, monkeypatch):
    async def breaks(turns):
        raise AssertionError("it was told to")

    monkeypatch.setattr("penstock.worker.turns.Turns._turn", breaks)
    with pytest.raises(AssertionError, match="it was told to"):
        demo.main(["--keep", str(tmp_path / "jobs.db")])
