"""Short runs of ``make chaos``: a good engine is acquitted, a torn one is not."""

from __future__ import annotations

import shutil

import pytest

from chaos.plan import Kind, plan
from chaos.run import LEASE, Report, run

SECONDS = 5.0
"""Of blows; jobs that were hit last then have a few more to end."""

LOST = "was acknowledged and is not stored"

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_settled_twice(kind: Kind) -> None:
    report = run(kind, seed=7, seconds=SECONDS)
    assert report.faults == [], str(report)
    assert report.record.acknowledged
    assert report.blows


def torn(kind: str) -> Report:
    report = run("sqlite", seed=7, seconds=1.0, torn=kind)
    shutil.rmtree(report.place)
    return report


def test_an_engine_that_drops_acknowledged_jobs_is_found_guilty() -> None:
    report = torn("dropping")
    lost = [fault.id for fault in report.faults if fault.what == LOST]
    assert lost, str(report)
    assert "make chaos KIND=sqlite SECONDS=1 SEED=7" in str(report)
    assert lost[0] in str(report)


def test_an_engine_that_gives_out_jobs_that_have_ended_is_found_guilty() -> None:
    report = torn("forgetting")
    assert any(fault.what.startswith("was settled twice") for fault in report.faults), str(report)


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    first = plan("postgres", 7, 60.0, LEASE)
    assert first == plan("postgres", 7, 60.0, LEASE)
    assert first != plan("postgres", 8, 60.0, LEASE)
    assert [blow.at for blow in first] == sorted(blow.at for blow in first)
    assert {blow.victim for blow in first} == {
        *("supervisor", "worker", "child", "producer", "server")
    }
    assert {blow.act for blow in first if blow.victim == "server"} == {"kill", "stop", "restart"}


def test_without_a_server_no_blow_is_meant_for_one() -> None:
    assert "server" not in {blow.victim for blow in plan("sqlite", 7, 60.0, LEASE)}
