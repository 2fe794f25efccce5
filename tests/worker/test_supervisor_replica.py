"""Which process follows which, and when: every row of the table in ``supervisor.replica``."""

from __future__ import annotations

import pytest

from penstock.core.job import Outcome, OutcomeKind
from penstock.worker.supervisor.replica import LIMIT
from penstock.worker.supervisor.replica_messages import Finished, ReplaceMe, SettleAfterDeath
from worker.supervisor_rig import LOADED, OneReplica


@pytest.fixture
async def owner(clock):
    owner = OneReplica(clock)
    await clock.settle()
    yield owner
    await owner.close()


async def serving(owner: OneReplica) -> None:
    """Let the first process join and work for a while."""
    owner.last.joins()
    owner.has_served = True
    await owner.clock.elapse(10)


async def test_an_application_that_does_not_load_at_first_is_given_up_at_once(owner, clock):
    owner.last.fails("no application at 'shop:app'")
    await clock.settle()
    assert owner.gave_up == [("no application at 'shop:app'", True)]
    await clock.elapse(100)
    assert len(owner.started) == 1


async def test_one_that_worked_before_is_tried_again(owner, clock):
    await serving(owner)
    owner.last.dies()
    await clock.settle()
    owner.last.fails()
    await clock.elapse(0.6)
    assert owner.gave_up == []
    assert len(owner.started) == 3


async def test_after_a_good_run_the_next_starts_at_once(owner, clock):
    await serving(owner)
    owner.last.dies()
    await clock.settle()
    assert [process.pid for process in owner.ended] == [1]
    assert len(owner.started) == 2
    assert owner.replica.current is owner.last


async def test_pauses_double_up_to_half_a_minute_while_runs_are_short(owner, clock):
    began_at, pauses = clock.monotonic(), []
    for run in range(1, 10):
        owner.last.joins()
        owner.has_served = True
        owner.last.dies()
        died_at = clock.monotonic()
        while len(owner.started) == run:
            await clock.elapse(0.5)
        pauses.append(clock.monotonic() - died_at)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert owner.gave_up == []
    assert clock.monotonic() > began_at


async def test_a_good_run_makes_the_next_pause_short_again(owner, clock):
    for _ in range(3):
        owner.last.joins()
        owner.last.dies()
        await clock.elapse(5)
    await serving(owner)
    owner.last.dies()
    await clock.settle()
    owner.last.joins()
    owner.last.dies()
    before = len(owner.started)
    await clock.elapse(0.6)
    assert len(owner.started) == before + 1


async def test_a_process_that_never_works_is_a_crash_loop(owner, clock):
    await serving(owner)
    owner.last.dies()
    for _ in range(LIMIT):
        await clock.elapse(31)
        owner.last.dies(-11)
    await clock.settle()
    ((why, is_usage),) = owner.gave_up
    assert why == (
        "a process ended 5 times in a row before it could work: "
        "process 6 was killed by SIGSEGV and did not say why"
    )
    assert not is_usage
    assert len(owner.started) == 1 + LIMIT


async def test_a_join_between_deaths_is_no_crash_loop(owner, clock):
    for _ in range(2):
        for _ in range(LIMIT - 1):
            owner.last.dies()
            await clock.elapse(31)
        owner.last.joins()
        owner.last.dies()
        await clock.elapse(31)
    assert owner.gave_up == []


async def test_a_process_that_asks_for_it_is_replaced_once_its_successor_has_joined(owner, clock):
    await serving(owner)
    old = owner.last
    old.says(ReplaceMe("it had 50 jobs"))
    await clock.settle()
    successor = owner.last
    assert (owner.replica.current, owner.replica.successor) == (old, successor)
    assert old.told() == []
    successor.joins()
    await clock.settle()
    assert (owner.replica.current, owner.replica.successor, owner.replica.leaving) == (
        successor,
        None,
        [old],
    )
    assert old.told() == [None]
    assert old.kill_at is None
    old.dies(0)
    await clock.elapse(100)
    assert len(owner.started) == 2


async def test_a_successor_that_does_not_start_changes_nothing_and_is_tried_again(owner, clock):
    await serving(owner)
    old = owner.last
    old.says(ReplaceMe("it had 50 jobs"))
    await clock.settle()
    owner.last.fails()
    await clock.settle()
    assert (owner.replica.current, owner.replica.successor) == (old, None)
    assert old.told() == []
    assert owner.gave_up == []
    await clock.elapse(29)
    assert len(owner.started) == 2
    await clock.elapse(2)
    assert len(owner.started) == 3


async def test_a_process_that_dies_while_its_successor_starts_is_followed_by_it(owner, clock):
    await serving(owner)
    owner.last.says(ReplaceMe("memory"))
    await clock.settle()
    owner.started[0].dies()
    await clock.settle()
    assert len(owner.started) == 2
    assert owner.replica.current is owner.last
    owner.last.joins()
    await clock.elapse(100)
    assert len(owner.started) == 2


async def test_the_caller_of_replace_learns_what_became_of_it(owner, clock):
    await serving(owner)
    could = owner.replica.replace("SIGHUP")
    await clock.settle()
    assert not could.done()
    owner.last.joins()
    assert await could
    again = owner.replica.replace("SIGHUP")
    await clock.settle()
    owner.last.fails()
    assert not await again
    await clock.elapse(100)
    assert len(owner.started) == 3


async def test_a_new_wish_dismisses_a_successor_that_may_have_loaded_old_code(owner, clock):
    await serving(owner)
    first = owner.replica.replace("the code has changed", drain=0.0)
    await clock.settle()
    early = owner.last
    second = owner.replica.replace("the code has changed", drain=0.0)
    assert not await first
    await clock.settle()
    assert early in owner.ended
    owner.last.joins()
    assert await second
    assert owner.started[0].told() == [0.0]


async def test_a_process_that_was_killed_on_purpose_is_no_bad_news(owner, clock, caplog):
    await serving(owner)
    owner.replica.replace("the code has changed", drain=0.0)
    await clock.settle()
    owner.replica.replace("the code has changed", drain=0.0)
    await clock.settle()
    assert [process.code for process in owner.ended] == [-9]
    assert caplog.messages == []
    owner.started[0].dies()
    await clock.settle()
    assert caplog.messages == ['process ended pid=1 how="was killed by SIGKILL"']


async def test_in_development_a_broken_application_waits_for_a_change(clock):
    owner = OneReplica(clock, waits_for_change=True)
    await clock.settle()
    owner.last.fails("SyntaxError")
    await clock.elapse(3600)
    assert (len(owner.started), owner.gave_up) == (1, [])
    could = owner.replica.replace("the code has changed", drain=0.0)
    await clock.settle()
    owner.last.joins()
    assert await could
    await owner.close()


async def test_a_stop_reaches_all_processes_and_ends_when_they_are_dead(owner, clock):
    await serving(owner)
    owner.replica.replace("SIGHUP")
    await clock.settle()
    successor, old = owner.last, owner.started[0]
    successor.says(LOADED)
    owner.replica.stop(30.0, 5.0)
    await clock.settle()
    assert (old.told(), successor.told()) == ([30.0], [30.0])
    assert old.kill_at == clock.monotonic() + 40
    owner.replica.stop(0.0, 5.0)
    assert old.told() == [0.0]
    assert old.kill_at == clock.monotonic() + 10
    old.dies(0)
    successor.dies(0)
    await owner.running
    assert len(owner.started) == 2


async def test_a_process_that_still_imports_is_killed_when_all_is_to_stop(owner, clock):
    owner.replica.stop(30.0, 5.0)
    await owner.running
    assert [process.code for process in owner.ended] == [-9]


async def test_a_process_that_found_nothing_left_to_do_is_not_followed(owner, clock):
    await serving(owner)
    owner.last.says(Finished())
    owner.last.dies(0)
    await owner.running
    assert len(owner.started) == 1


async def test_a_machine_without_room_for_a_process_is_asked_again_later(owner, clock):
    await serving(owner)
    owner.is_full = True
    owner.last.dies()
    await clock.elapse(1)
    owner.is_full = False
    await clock.elapse(2)
    assert len(owner.started) == 2


async def test_the_last_words_of_a_dead_process_are_heard(owner, clock):
    await serving(owner)
    done = Outcome(job="j", claim=2, kind=OutcomeKind.FAILED)
    process = owner.last
    process.whispers(SettleAfterDeath("w1", (done,)))
    process.dies()
    await clock.settle()
    assert owner.ended == [process]
    assert process.left_outcomes == {("w1", "j", 2): done}
