"""A store that is away: running handlers go on, nothing starts on an old lease, nothing is lost."""

from __future__ import annotations

import asyncio
import threading

from penstock.core.job import State
from penstock.worker.settings import WorkerSettings
from worker.rig import soon, specs


async def test_a_store_that_is_away_longer_than_a_lease_leaves_every_handler_run_once(rig):
    runs, started, finish = [], asyncio.Event(), asyncio.Event()
    in_thread, thread_may_end = threading.Event(), threading.Event()

    async def long(n: int) -> int:
        runs.append(n)
        if len(runs) == 3:
            started.set()
        await finish.wait()
        return n

    def long_in_thread() -> int:
        runs.append(99)
        in_thread.set()
        assert thread_may_end.wait(20)
        return 99

    async with rig.working(specs(long, long_in_thread)) as worker:
        name = worker.id
        ids = [await rig.put("long", b'{"n":%d}' % n) for n in range(3)]
        ids.append(await rig.put("long_in_thread"))
        await soon(started.wait())
        await soon(asyncio.to_thread(in_thread.wait, 20))
        await rig.clock.asleep(3)
        rig.down()
        await rig.pass_time(40)  # more than two leases
        finish.set()
        thread_may_end.set()
        await rig.clock.settle()
        assert {(await rig.job(id)).state for id in ids} == {State.RUNNING}
        rig.up()
        jobs = await rig.meanwhile(rig.ended(*ids))
        assert worker.id == name

    assert sorted(runs) == [0, 1, 2, 99]
    assert {(job.state, job.attempt, job.crashes) for job in jobs} == {(State.SUCCEEDED, 1, 0)}


async def test_beats_go_on_as_long_as_the_worker_does(rig):
    async with rig.working(specs()) as worker:
        (first,) = await rig.engine.workers()
        # The beats have a thread of their own: time may run ahead of it on a busy machine.
        for _ in range(1000):
            await rig.pass_time(3)
            (info,) = await rig.engine.workers()
            if info.beat >= first.beat + 6:
                break
        assert info.id == worker.id == first.id
        assert info.beat >= first.beat + 6


async def test_beats_and_chores_go_on_while_a_handler_blocks_the_loop(rig):
    wedged, free = threading.Event(), threading.Event()

    async def wedge() -> None:
        wedged.set()
        assert free.wait(60)

    def promotions() -> int:
        return sum(handle.verbs.count("promote") for handle in rig.handles)

    def others_live() -> None:
        """In a thread of the test: time passes, and only those with their own loop notice."""
        assert wedged.wait(20)
        pause = threading.Event()
        # Never further than the beats have come: a slow machine must not look like a dead worker.
        for beat in range(1, 1000):
            rig.clock.advance(WorkerSettings().beat_every)
            for _ in range(20_000):
                (info,) = rig.store.workers.values()
                if info.beat >= beat:
                    break
                pause.wait(0.001)
            if beat >= 5 and promotions() >= 3:
                break
        free.set()

    thread = threading.Thread(target=others_live)
    async with rig.working(specs(wedge), leads=True) as worker:
        thread.start()
        id = await rig.put("wedge")
        (job,) = await rig.ended(id)
        (info,) = await rig.engine.workers()
        assert (info.id, info.beat >= 5) == (worker.id, True)
        assert promotions() >= 3
    thread.join()

    assert (job.state, job.attempt) == (State.SUCCEEDED, 1)
