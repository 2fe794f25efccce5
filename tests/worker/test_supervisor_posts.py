"""Who follows whom, and when: every row of the table in ``staff.post``."""

from __future__ import annotations

import pytest

from penstock.core.job import Outcome, OutcomeKind
from penstock.worker.supervisor.replica import LIMIT
from penstock.worker.supervisor.replica_messages import Done, Replace, Will
from worker.staff_rig import LOADED, Office


@pytest.fixture
async def office(clock):
    office = Office(clock)
    await clock.settle()
    yield office
    await office.close()


async def serving(office: Office) -> None:
    """Let the first process join and work for a while."""
    office.last.joins()
    office.has_served = True
    await office.clock.elapse(10)


async def test_an_application_that_does_not_load_at_first_is_given_up_at_once(office, clock):
    office.last.fails("no application at 'shop:app'")
    await clock.settle()
    assert office.gave_up == [("no application at 'shop:app'", True)]
    await clock.elapse(100)
    assert len(office.hired) == 1


async def test_one_that_worked_before_is_tried_again(office, clock):
    await serving(office)
    office.last.dies()
    await clock.settle()
    office.last.fails()
    await clock.elapse(0.6)
    assert office.gave_up == []
    assert len(office.hired) == 3


async def test_after_a_good_run_the_next_starts_at_once(office, clock):
    await serving(office)
    office.last.dies()
    await clock.settle()
    assert [member.pid for member in office.buried] == [1]
    assert len(office.hired) == 2
    assert office.post.holder is office.last


async def test_pauses_double_up_to_half_a_minute_while_runs_are_short(office, clock):
    began_at, pauses = clock.monotonic(), []
    for run in range(1, 10):
        office.last.joins()
        office.has_served = True
        office.last.dies()
        died_at = clock.monotonic()
        while len(office.hired) == run:
            await clock.elapse(0.5)
        pauses.append(clock.monotonic() - died_at)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert office.gave_up == []
    assert clock.monotonic() > began_at


async def test_a_good_run_makes_the_next_pause_short_again(office, clock):
    for _ in range(3):
        office.last.joins()
        office.last.dies()
        await clock.elapse(5)
    await serving(office)
    office.last.dies()
    await clock.settle()
    office.last.joins()
    office.last.dies()
    before = len(office.hired)
    await clock.elapse(0.6)
    assert len(office.hired) == before + 1


async def test_a_process_that_never_works_is_a_crash_loop(office, clock):
    await serving(office)
    office.last.dies()
    for _ in range(LIMIT):
        await clock.elapse(31)
        office.last.dies(-11)
    await clock.settle()
    ((why, is_usage),) = office.gave_up
    assert why == (
        "a process ended 5 times in a row before it could work: "
        "process 6 was killed by SIGSEGV and did not say why"
    )
    assert not is_usage
    assert len(office.hired) == 1 + LIMIT


async def test_a_join_between_deaths_is_no_crash_loop(office, clock):
    for _ in range(2):
        for _ in range(LIMIT - 1):
            office.last.dies()
            await clock.elapse(31)
        office.last.joins()
        office.last.dies()
        await clock.elapse(31)
    assert office.gave_up == []


async def test_a_process_that_asks_for_it_is_replaced_once_its_heir_has_joined(office, clock):
    await serving(office)
    old = office.last
    old.says(Replace("it had 50 jobs"))
    await clock.settle()
    heir = office.last
    assert (office.post.holder, office.post.heir) == (old, heir)
    assert old.told() == []
    heir.joins()
    await clock.settle()
    assert (office.post.holder, office.post.heir, office.post.leaving) == (heir, None, [old])
    assert old.told() == [None]
    assert old.doom_at is None
    old.dies(0)
    await clock.elapse(100)
    assert len(office.hired) == 2


async def test_an_heir_that_does_not_start_leaves_the_holder_and_is_tried_again(office, clock):
    await serving(office)
    old = office.last
    old.says(Replace("it had 50 jobs"))
    await clock.settle()
    office.last.fails()
    await clock.settle()
    assert (office.post.holder, office.post.heir) == (old, None)
    assert old.told() == []
    assert office.gave_up == []
    await clock.elapse(29)
    assert len(office.hired) == 2
    await clock.elapse(2)
    assert len(office.hired) == 3


async def test_a_holder_that_dies_while_its_heir_starts_is_followed_by_the_heir(office, clock):
    await serving(office)
    office.last.says(Replace("memory"))
    await clock.settle()
    office.hired[0].dies()
    await clock.settle()
    assert len(office.hired) == 2
    assert office.post.holder is office.last
    office.last.joins()
    await clock.elapse(100)
    assert len(office.hired) == 2


async def test_whoever_asks_for_a_replacement_learns_what_became_of_it(office, clock):
    await serving(office)
    could = office.post.replace("SIGHUP")
    await clock.settle()
    assert not could.done()
    office.last.joins()
    assert await could
    again = office.post.replace("SIGHUP")
    await clock.settle()
    office.last.fails()
    assert not await again
    await clock.elapse(100)
    assert len(office.hired) == 3


async def test_a_new_wish_dismisses_an_heir_that_may_have_loaded_old_code(office, clock):
    await serving(office)
    first = office.post.replace("the code has changed", drain=0.0)
    await clock.settle()
    early = office.last
    second = office.post.replace("the code has changed", drain=0.0)
    assert not await first
    await clock.settle()
    assert early in office.buried
    office.last.joins()
    assert await second
    assert office.hired[0].told() == [0.0]


async def test_a_process_that_was_killed_on_purpose_is_no_bad_news(office, clock, caplog):
    await serving(office)
    office.post.replace("the code has changed", drain=0.0)
    await clock.settle()
    office.post.replace("the code has changed", drain=0.0)
    await clock.settle()
    assert [member.code for member in office.buried] == [-9]
    assert caplog.messages == []
    office.hired[0].dies()
    await clock.settle()
    assert caplog.messages == ["process was killed by SIGKILL pid=1"]


async def test_in_development_a_broken_application_waits_for_a_change(clock):
    office = Office(clock, waits_for_change=True)
    await clock.settle()
    office.last.fails("SyntaxError")
    await clock.elapse(3600)
    assert (len(office.hired), office.gave_up) == (1, [])
    could = office.post.replace("the code has changed", drain=0.0)
    await clock.settle()
    office.last.joins()
    assert await could
    await office.close()


async def test_a_stop_reaches_everybody_and_ends_when_they_have_gone(office, clock):
    await serving(office)
    office.post.replace("SIGHUP")
    await clock.settle()
    heir, old = office.last, office.hired[0]
    heir.says(LOADED)
    office.post.stop(30.0, 5.0)
    await clock.settle()
    assert (old.told(), heir.told()) == ([30.0], [30.0])
    assert old.doom_at == clock.monotonic() + 40
    office.post.stop(0.0, 5.0)
    assert old.told() == [0.0]
    assert old.doom_at == clock.monotonic() + 10
    old.dies(0)
    heir.dies(0)
    await office.keeping
    assert len(office.hired) == 2


async def test_a_process_that_still_imports_is_killed_when_all_is_to_stop(office, clock):
    office.post.stop(30.0, 5.0)
    await office.keeping
    assert [member.code for member in office.buried] == [-9]


async def test_a_process_that_found_nothing_left_to_do_is_not_followed(office, clock):
    await serving(office)
    office.last.says(Done())
    office.last.dies(0)
    await office.keeping
    assert len(office.hired) == 1


async def test_a_machine_without_room_for_a_process_is_asked_again_later(office, clock):
    await serving(office)
    office.is_full = True
    office.last.dies()
    await clock.elapse(1)
    office.is_full = False
    await clock.elapse(2)
    assert len(office.hired) == 2


async def test_the_last_words_of_a_dead_process_are_heard(office, clock):
    await serving(office)
    done = Outcome(job="j", attempt=2, kind=OutcomeKind.FAILED)
    member = office.last
    member.whispers(Will("w1", (done,)))
    member.dies()
    await clock.settle()
    assert office.buried == [member]
    assert member.will == {("w1", "j", 2): done}
