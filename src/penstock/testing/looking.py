"""What a test can see and say of the jobs in a sandbox."""

from __future__ import annotations

from typing import Any

from penstock.app import Penstock
from penstock.core.job import Job
from penstock.core.spec import Spec
from penstock.errors import BadOption
from penstock.task import Sender
from penstock.testing.bench import Bench
from penstock.testing.entries import Entry, Expectation, arguments_of, report
from penstock.testing.snapshot import picture

AnyTask = Sender[..., Any] | str
"""A task, a task with options (``send.using(...)``), or a task's name."""


class Looking:
    """The part of a sandbox that only looks."""

    app: Penstock
    _bench: Bench
    _start: float

    def enqueued(self, task: AnyTask | None = None, /, *args: Any, **expected: Any) -> list[Entry]:
        """What was enqueued since the block began, in order: all of it, of one task, or what fits.

        Arguments may be given by place or by name, and options by name, as for
        ``assert_enqueued``. What the store knew already (same id, same unique key) is not there.
        """
        entries = [
            Entry(
                each.draft, arguments_of(self._spec(each.draft.task), each.draft.payload), each.at
            )
            for each in list(self._bench.watch.stored)
        ]
        if task is None:
            return entries
        if not isinstance(task, Sender | str):
            raise BadOption("task", task, "give a task of the app, or its name")
        expectation = self._expectation(task, args, expected)
        return [entry for entry in entries if not expectation.differences(entry)]

    def assert_enqueued(
        self, task: AnyTask, /, *args: Any, count: int | None = None, **expected: Any
    ) -> list[Entry]:
        """Fail unless such a job was enqueued, or exactly ``count`` of them; return those.

        What is not said may be anything. A name is an argument if the task has such a parameter,
        else an option: ``queue``, ``key``, ``delay``, ``run_at``, ``unique``, ``priority``, ... An
        option whose name is taken by a parameter is said with ``using``:
        ``t.assert_enqueued(send.using(key="7"), to="a@b.c")``. Defaults count as given. A parameter
        that is called ``count`` can only be given by place.
        """
        found = self.enqueued(task, *args, **expected)
        spec = self._spec(task if isinstance(task, str) else task.name)
        if count is not None and spec is not None and "count" in spec.signature.given.parameters:
            why = "the task has a parameter of that name: give it by place, and count the jobs with"
            raise BadOption("count", count, f"{why} len(t.enqueued(...))")
        if (count is None and found) or len(found) == count:
            return found
        if count is None:
            wanted = "a job"
        else:
            jobs = "job was" if count == 1 else "jobs were"
            wanted = f"{len(found)} jobs fit where {count} {jobs} expected: a job"
        raise self._unmet(task, args, expected, wanted)

    def assert_not_enqueued(self, task: AnyTask, /, *args: Any, **expected: Any) -> None:
        """Fail if such a job was enqueued."""
        if self.enqueued(task, *args, **expected):
            raise self._unmet(task, args, expected, "no job")

    @property
    def jobs(self) -> list[Job]:
        """All jobs as they are now, in the order they were enqueued."""
        return self._bench.jobs()

    @property
    def waiting(self) -> list[Job]:
        """Those that are ready or scheduled, with the reason if they are held."""
        return [job for job in self._bench.jobs() if job.state.is_waiting]

    def snapshot(self) -> dict[str, Any]:
        """The store as plain data that is the same in each run: for snapshot tests and diffs.

        Instants are seconds since the block began, ids are "job 1", "job 2" unless chosen; what
        says nothing is left out, and so are tracebacks.
        """
        chosen = {each.draft.id for each in self._bench.watch.stored if each.draft.remember > 0}
        specs = {name: task.spec for name, task in self.app.tasks.items()}
        now = self._bench.clock.now()
        return picture(self._bench.jobs(), specs, self._start, now, frozenset(chosen))

    def _unmet(
        self, task: AnyTask, args: tuple[Any, ...], given: dict[str, Any], wanted: str
    ) -> AssertionError:
        expectation = self._expectation(task, args, given)
        return AssertionError(report(expectation, self.enqueued(), wanted))

    def _expectation(
        self, task: AnyTask, args: tuple[Any, ...], given: dict[str, Any]
    ) -> Expectation:
        declared = self._known(task) if isinstance(task, Sender) else None
        return Expectation.of(task, declared, self._spec, self.app.settings.priorities, args, given)

    def _known(self, task: AnyTask) -> Sender[..., Any]:
        """The task as it was declared with this app."""
        name = task if isinstance(task, str) else task.name
        found = self.app.tasks.get(name)
        if found is None:
            known = ", ".join(self.app.tasks) or "no task at all"
            raise BadOption("task", name, f"the app of this sandbox does not know it, but {known}")
        return found

    def _spec(self, name: str) -> Spec | None:
        task = self.app.tasks.get(name)
        return None if task is None else task.spec
