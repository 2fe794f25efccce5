"""The leader's cell by the server's own clock, which goes on between two statements."""

from __future__ import annotations

import pytest

from penstock.engines.postgres.engine import PostgresEngine
from penstock.leader.election import Election, present_term, ttl_beside


@pytest.mark.parametrize("lease", [10.0, 15.0])
async def test_a_candidate_knows_that_it_leads_and_keeps_its_epoch(postgres_url, lease):
    engine = PostgresEngine(postgres_url)
    await engine.open()
    try:
        election = Election("a", engine.clock, ttl_beside(lease))
        epochs = []
        for _ in range(3):
            await election.stand(engine)
            epochs.append(election.epoch)
        term = await present_term(engine)
    finally:
        await engine.close()

    assert term is not None
    assert epochs == [term.epoch] * 3
