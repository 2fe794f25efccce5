"""Every sentence that could rot is seen to fail on an engine that breaks it."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from conformance import steps
from conformance import test_cells as cells
from conformance import test_crashed as crashed
from conformance import test_election as election
from conformance import test_fair_queues as fair
from conformance import test_find_pages as pages
from conformance import test_law01_exchange as law01
from conformance import test_law02_fence as law02
from conformance import test_law03_held as law03
from conformance import test_law04_death as law04
from conformance import test_law05_crash as law05
from conformance import test_law06_same_id as law06
from conformance import test_law07_holds as law07
from conformance import test_law08_tickets as law08
from conformance import test_law09_order as law09
from conformance import test_law10_bad_items as law10
from conformance import test_law11_wake_up as law11
from conformance import test_law12_time as law12
from conformance import test_law13_unique as law13
from conformance import test_law14_at_most_once as law14
from conformance import test_law15_results as law15
from conformance import test_least_urgent as least_urgent
from conformance import test_many_handles as many
from conformance import test_nothing_to_do as idle
from conformance import test_ordered as ordered
from conformance import test_ordered_beside as ordered_beside
from conformance import test_repair as repair
from conformance import test_rewrite as rewrite
from conformance import test_same_story as same_story
from conformance import test_threads as threads
from conformance import test_unknown_task as unknown
from conformance import torn_laws as laws
from conformance import torn_queues as queues
from conformance import torn_steps as two_steps
from conformance.steps import claim, claim_one, draft, ids, put, settle, stored
from conformance.torn import Torn, torn_store
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import QueueSettings, Repaired

Sentence = Callable[..., Any]

TEARS: list[tuple[type[Torn], list[Sentence]]] = [
    (
        laws.SharesOneSnapshot,
        [
            law01.test_a_job_released_in_an_exchange_can_be_claimed_in_it,
            law01.test_the_room_that_a_settlement_makes_is_used_in_the_same_exchange,
        ],
    ),
    (laws.LeavesPromotionToTheLeader, [law01.test_a_claimer_promotes_what_is_due]),
    (
        laws.HasNoFence,
        [
            law02.test_another_worker_cannot_settle_an_attempt,
            law02.test_an_attempt_that_does_not_run_cannot_be_settled,
            law02.test_a_stale_outcome_does_not_hinder_its_neighbours,
        ],
    ),
    (
        laws.ComparesWorkersOnly,
        [
            law02.test_an_attempt_that_does_not_run_cannot_be_settled,
            law02.test_an_outcome_repeated_while_the_same_worker_runs_the_next_attempt_changes_nothing,
            law02.test_an_older_attempt_is_stale_for_the_worker_that_runs_the_next,
        ],
    ),
    (
        laws.ForgetsWhoSettled,
        [
            law02.test_an_outcome_repeated_by_its_owner_is_done_and_changes_nothing,
            law03.test_an_exchange_whose_reply_was_lost_can_be_sent_again,
        ],
    ),
    (
        laws.ChecksTheLeaseLast,
        [
            law02.test_without_its_lease_a_worker_cannot_exchange_and_nothing_is_written,
            law02.test_a_worker_that_never_joined_cannot_exchange,
            law02.test_a_refused_exchange_does_not_promote,
        ],
    ),
    (
        laws.LosesWhatItHandedOut,
        [law03.test_a_worker_whose_reply_was_lost_learns_what_it_was_given],
    ),
    (
        laws.HappensLater,
        [law03.test_a_cancelled_call_cannot_happen_any_more_once_a_later_one_returned],
    ),
    (laws.GuessesDeath, [law04.test_a_worker_that_beat_since_it_was_seen_is_not_dead]),
    (
        laws.ChargesWhatHadNotStarted,
        [law05.test_an_attempt_that_had_not_started_is_not_charged],
    ),
    (
        laws.CallsACrashAFailure,
        [
            same_story.test_the_same_story_ends_the_same,
            law05.test_a_crash_is_counted_apart_from_failures,
            law05.test_the_last_crash_allowed_fails_the_job,
        ],
    ),
    (
        laws.TakesACrashForARelease,
        [
            crashed.test_it_counts_as_a_crash_and_not_as_a_failure_or_a_rescue,
            crashed.test_the_last_crash_allowed_fails_the_job_and_says_what_happened,
            crashed.test_a_job_that_runs_at_most_once_may_have_run,
        ],
    ),
    (
        laws.TakesACrashForARetry,
        [
            same_story.test_the_same_story_ends_the_same,
            crashed.test_it_counts_as_a_crash_and_not_as_a_failure_or_a_rescue,
            crashed.test_it_keeps_its_ticket,
        ],
    ),
    (
        laws.ForgetsTheLedger,
        [
            law06.test_an_id_outlives_its_job_when_it_was_purged,
            law06.test_an_id_outlives_its_job_when_it_was_pruned,
            many.test_the_same_purged_id_enqueued_many_times_at_once_is_no_job,
        ],
    ),
    (
        laws.RemembersWhatItRefused,
        [law06.test_a_draft_that_was_not_stored_does_not_use_up_its_id],
    ),
    (
        laws.ClaimsWhatIsHeld,
        [law07.test_a_held_job_is_not_claimed, unknown.test_it_is_not_claimed_again],
    ),
    (
        laws.LeavesHoldsToTheLeader,
        [
            unknown.test_a_worker_that_joins_and_knows_the_task_lifts_the_hold,
            unknown.test_many_jobs_of_the_task_are_let_go_in_batches,
            repair.test_a_hold_without_a_cause_is_lifted,
            law11.test_a_worker_that_joins_wakes_those_who_wait_for_its_tasks,
        ],
    ),
    (
        laws.LiftsHoldsThatHaveACause,
        [
            same_story.test_the_same_story_ends_the_same,
            law07.test_a_hold_without_an_instant_waits_for_its_cause_only,
            unknown.test_a_worker_that_does_not_know_the_task_leaves_the_hold,
            repair.test_holds_that_have_a_cause_are_left,
            repair.test_a_hold_of_which_nothing_here_knows_the_cause_is_left,
        ],
    ),
    (
        laws.KeepsTheTicketOfALiftedHold,
        [
            law08.test_a_job_whose_hold_is_lifted_goes_to_the_end_of_the_line,
            rewrite.test_a_job_that_loses_its_hold_goes_to_the_end_of_the_line,
        ],
    ),
    (
        laws.KeepsEveryTicket,
        [
            same_story.test_the_same_story_ends_the_same,
            law08.test_a_job_that_tries_again_goes_to_the_end_of_the_line,
            law08.test_a_promoted_job_takes_a_new_ticket,
            law08.test_a_job_whose_hold_is_over_goes_to_the_end_of_the_line,
            law08.test_a_job_that_a_person_sends_back_goes_to_the_end_of_the_line,
        ],
    ),
    (laws.TakesANewTicketOnRelease, [law08.test_a_job_that_is_given_back_keeps_its_ticket]),
    (
        laws.TakesANewTicketOnRescue,
        [
            law08.test_a_rescued_job_keeps_its_ticket,
            law08.test_a_rescued_job_that_had_not_started_keeps_its_ticket,
        ],
    ),
    (laws.OrdersByIds, [law09.test_ids_are_never_used_for_order]),
    (
        laws.EmptiesTheFirstQueueFirst,
        [
            law09.test_queues_of_one_priority_take_turns,
            law09.test_priority_comes_before_the_turn_of_a_queue,
        ],
    ),
    (
        queues.GivesWhatIsNotUrgent,
        [
            least_urgent.test_only_jobs_that_are_urgent_enough_are_claimed,
            least_urgent.test_nothing_is_claimed_if_nothing_is_urgent_enough,
        ],
    ),
    (
        queues.FiltersUrgentJobsAfterTheClaim,
        [least_urgent.test_nothing_is_claimed_if_nothing_is_urgent_enough],
    ),
    (
        queues.TakesOrderForALimit,
        [
            ordered.test_while_a_job_waits_for_its_next_attempt_all_others_wait,
            ordered.test_an_open_job_that_is_ready_is_the_only_one_that_can_be_claimed,
            ordered.test_a_held_job_that_is_open_blocks_until_its_hold_is_over,
        ],
    ),
    (
        queues.LetsOthersPassARetryThatIsReady,
        [
            ordered.test_an_open_job_that_is_ready_is_the_only_one_that_can_be_claimed,
            ordered_beside.test_an_open_job_of_a_fair_queue_comes_first_also_with_a_new_ticket,
        ],
    ),
    (
        queues.TakesEveryPastAttemptForAnOpenJob,
        [
            ordered.test_a_job_that_a_person_sent_back_enters_like_a_new_one,
            ordered.test_an_open_job_that_was_cancelled_and_sent_back_is_not_open,
        ],
    ),
    (
        queues.PassesOverInAnOrderedQueue,
        [ordered_beside.test_what_a_worker_cannot_have_is_not_passed_over],
    ),
    (
        queues.SleepsThroughTheRetry,
        [
            ordered_beside.test_a_sleeper_wakes_when_the_retry_falls_due,
            ordered_beside.test_the_retry_of_an_open_job_is_foretold,
        ],
    ),
    (
        laws.StoresOneByOne,
        [law10.test_a_batch_with_an_unstorable_draft_is_refused_whole],
    ),
    (
        laws.SettlesOneByOne,
        [law10.test_an_exchange_with_an_unstorable_outcome_writes_nothing],
    ),
    (
        laws.WaitsForTheNextChange,
        [law11.test_a_commit_between_look_and_sleep_ends_the_sleep],
    ),
    (
        laws.HearsOnlyItself,
        [
            law11.test_a_sleeper_is_woken_by_a_job_that_another_handle_enqueues,
            law11.test_a_cancellation_wakes_the_worker_that_runs_the_job,
            law15.test_a_waiter_is_woken_by_the_settlement_of_another_handle,
            threads.test_a_sleeper_is_woken_from_another_thread,
            threads.test_a_result_comes_from_another_thread,
        ],
    ),
    (
        laws.SpinsOnWhatItCannotHave,
        [
            idle.test_a_paused_queue_gives_nothing,
            idle.test_avoided_tasks_are_not_given,
            idle.test_a_held_job_cannot_be_given,
        ],
    ),
    (laws.SleepsOnTheWallClock, [law12.test_a_clock_that_jumps_back_makes_no_sleep_longer]),
    (
        laws.WaitsAgainWithoutItsKey,
        [law13.test_a_job_that_would_wait_again_is_superseded_if_its_key_is_taken],
    ),
    (
        laws.KeepsKeysOfTheDead,
        [law13.test_a_job_that_is_cancelled_while_it_waits_gives_its_key_back],
    ),
    (
        laws.PrefetchesAnything,
        [
            law14.test_it_is_not_handed_out_without_a_slot,
            law14.test_beyond_the_slots_it_is_passed_over_for_those_behind_it,
        ],
    ),
    (laws.RunsAgainWhatMayHaveRun, [law14.test_a_rescue_fails_it_because_it_may_have_run]),
    (
        queues.ServesInOrderOfArrival,
        [
            fair.test_a_thousand_jobs_of_one_key_do_not_delay_anothers_single_job,
            many.test_claimers_that_race_in_a_fair_queue_serve_each_key_once_per_turn,
        ],
    ),
    (
        queues.LosesTheNoteOfAKeyLine,
        [
            fair.test_keys_take_turns,
            fair.test_a_job_that_falls_due_stands_in_the_line_of_its_key,
            law01.test_a_key_that_becomes_active_in_an_exchange_is_claimed_in_it,
            repair.test_a_fair_queue_at_work_is_healthy,
        ],
    ),
    (
        queues.GivesIdleTimeBack,
        [fair.test_a_key_that_was_idle_does_not_get_its_idle_time_back],
    ),
    (queues.LetsNewKeysPass, [fair.test_new_keys_without_end_do_not_pass_one_that_waits]),
    (
        laws.TurnsPagesByOffset,
        [
            pages.test_a_job_enqueued_between_two_pages_is_in_neither,
            pages.test_a_job_that_is_deleted_between_two_pages_is_missing_only_itself,
        ],
    ),
    # --- one step in two ---
    (
        two_steps.ClaimsInTwoSteps,
        [
            many.test_claimers_that_race_never_share_a_job,
            many.test_claimers_that_race_for_due_jobs_never_share_one,
            many.test_claimers_that_race_in_a_fair_queue_serve_each_key_once_per_turn,
            many.test_nothing_is_lost_or_run_twice_when_everybody_works,
        ],
    ),
    (
        two_steps.CountsBeforeTheLock,
        [
            many.test_claimers_that_race_never_overrun_a_limit,
            many.test_claimers_that_race_for_an_ordered_queue_run_one_job_at_a_time,
            fair.test_claimers_that_race_do_not_overrun_the_limit_of_a_key,
        ],
    ),
    (
        two_steps.SettlesInTwoSteps,
        [many.test_the_same_outcome_sent_many_times_at_once_counts_once],
    ),
    (
        two_steps.LooksForIdsFirst,
        [many.test_the_same_id_enqueued_many_times_at_once_is_one_job],
    ),
    (
        two_steps.LooksForKeysFirst,
        [many.test_the_same_unique_key_enqueued_many_times_at_once_is_one_job],
    ),
    (
        two_steps.NeedsItsKeyInTwoSteps,
        [many.test_of_two_who_run_one_key_at_once_the_later_is_superseded_once],
    ),
    (two_steps.GivesTicketsInTwoSteps, [many.test_tickets_given_at_once_are_all_different]),
    (two_steps.BuriesInTwoSteps, [many.test_a_beat_and_a_burial_at_once_agree]),
    (two_steps.LooksForTheLeaseFirst, [many.test_an_attempt_is_either_settled_or_rescued]),
    (
        two_steps.RewritesWithoutComparing,
        [
            many.test_a_job_is_either_claimed_or_cancelled,
            many.test_a_dead_workers_job_is_rescued_once,
            many.test_people_who_send_a_job_back_at_once_send_it_back_once,
            rewrite.test_a_job_that_has_changed_meanwhile_is_not_written,
        ],
    ),
    (two_steps.PromotesInTwoSteps, [many.test_promoters_that_race_promote_each_job_once]),
    (two_steps.PrunesInTwoSteps, [many.test_pruners_that_race_count_each_job_once]),
    (
        two_steps.HoldsInTwoSteps,
        [many.test_a_hold_is_not_forgotten_when_its_worker_joins_at_once],
    ),
    (
        two_steps.WritesCellsInTwoSteps,
        [
            cells.test_of_many_writers_at_once_one_wins,
            election.test_of_many_candidates_at_once_one_leads,
        ],
    ),
]

CASES = [(kind, sentence) for kind, sentences in TEARS for sentence in sentences]


def cases_of(sentence: Sentence) -> list[dict[str, Any]]:
    """The arguments of each case that ``parametrize`` makes of a test."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(sentence, "pytestmark", []):
        names, values = mark.args
        names = [name.strip() for name in names.split(",")]
        rows = [value if len(names) > 1 else (value,) for value in values]
        axes.append([dict(zip(names, row, strict=True)) for row in rows])
    return [{name: each[name] for each in axis for name in each} for axis in product(*axes)]


async def holds(sentence: Sentence, kind: type[Torn], clock, case: dict[str, Any]) -> bool:
    """The sentence is true of this torn engine."""
    store = torn_store(kind, clock)
    arguments: dict[str, Any] = dict(case)
    wanted = inspect.signature(sentence).parameters
    if "store" in wanted:
        arguments["store"] = store
    if "engine" in wanted:
        arguments["engine"] = await store.open()
    try:
        await sentence(**arguments)
    except (AssertionError, pytest.fail.Exception):
        return False
    except ValueError as error:
        # Taking the one from many is an assertion too: (job,) = jobs.
        return "values to unpack" not in str(error)
    except ExceptionGroup as group:
        return group.subgroup(AssertionError) is None
    finally:
        await store.close()
    return True


@pytest.mark.parametrize(
    "kind, sentence", CASES, ids=[f"{kind.__name__}-{each.__name__}" for kind, each in CASES]
)
async def test_a_torn_engine_is_found_out(kind, sentence, clock, monkeypatch):
    monkeypatch.setattr(steps, "patience", 0.2)
    for case in cases_of(sentence):
        if not await holds(sentence, kind, clock, case):
            return
    pytest.fail(f"{sentence.__name__} holds for {kind.__name__}: {kind.__doc__}")


@pytest.mark.parametrize("kind", [kind for kind, _ in TEARS], ids=lambda kind: kind.__name__)
async def test_a_torn_engine_works_while_nobody_disturbs_it(kind, clock):
    """It is found out for its tear, not because nothing works at all."""
    store = torn_store(kind, clock)
    engine = await store.open()
    id = await put(engine)
    await settle(engine, await claim_one(engine), "succeeded", result=b"1")
    job = await stored(engine, id)
    assert (job.state, job.result) == (State.SUCCEEDED, b"1")
    await store.close()


async def test_a_key_line_that_has_lost_its_note_is_found_by_a_repair(clock):
    store = torn_store(queues.LosesTheNoteOfAKeyLine, clock)
    engine = await store.open()
    await engine.set_queue("default", QueueSettings(fair=True))
    job = await put(engine, key="a")
    assert await engine.repair(10, rehearse=True) == Repaired(lines=1)
    assert await claim(engine) == []
    assert await engine.repair(10) == Repaired(lines=1)
    assert await engine.repair(10) == Repaired()
    assert ids(await claim(engine)) == [job]
    await store.close()


async def test_a_unique_key_that_was_not_given_back_is_found_by_a_repair(clock):
    store = torn_store(laws.KeepsKeysOfTheDead, clock)
    engine = await store.open()
    await changes.cancel(engine, [await put(engine, unique="only")], "enough")
    assert await engine.repair(10, rehearse=True) == Repaired(keys=1)
    assert [each.created for each in await engine.enqueue([draft(unique="only")])] == [False]
    assert await engine.repair(10) == Repaired(keys=1)
    assert await engine.repair(10) == Repaired()
    await put(engine, unique="only")
    await store.close()


@pytest.mark.parametrize("module", [many], ids=["races"])
async def test_every_race_is_seen_to_fail_on_a_torn_engine(module):
    races = {each for name, each in vars(module).items() if name.startswith("test_")}
    assert races - {sentence for _, sentence in CASES} == set()


IN_THREADS: list[tuple[type[Torn], Sentence]] = [
    (two_steps.ClaimsInTwoSteps, threads.test_claimers_in_threads_never_share_a_job),
    (two_steps.CountsBeforeTheLock, threads.test_claimers_in_threads_never_overrun_a_limit),
    (two_steps.LooksForIdsFirst, threads.test_the_same_id_enqueued_in_threads_is_one_job),
]


@pytest.mark.parametrize(
    "kind, sentence",
    IN_THREADS,
    ids=[f"{kind.__name__}-{each.__name__}" for kind, each in IN_THREADS],
)
async def test_a_torn_engine_is_found_out_by_threads(kind, sentence, clock, monkeypatch):
    """All threads have decided before the first of them writes."""
    meeting = threading.Barrier(4)

    async def others_act() -> None:
        if threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(5)

    monkeypatch.setattr(two_steps, "others_act", others_act)
    assert not await holds(sentence, kind, clock, {})


def test_every_race_of_threads_is_seen_to_fail_on_a_torn_engine():
    races = {each for name, each in vars(threads).items() if name.startswith("test_")}
    wake_ups = {
        threads.test_a_sleeper_is_woken_from_another_thread,
        threads.test_a_result_comes_from_another_thread,
    }
    assert races - wake_ups == {sentence for _, sentence in IN_THREADS}


def test_every_law_has_a_torn_engine():
    modules = {sentence.__module__ for _, sentence in CASES}
    torn = {name.split("test_law")[1][:2] for name in modules if "test_law" in name}
    assert torn == {f"{law:02}" for law in range(1, 16)}
