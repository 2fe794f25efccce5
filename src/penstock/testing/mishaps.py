"""What a test lets go wrong in a sandbox: attempts that fail or die, a store that is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import BadOption
from penstock.testing.errors import UnusedFault
from penstock.testing.faults import At, Fault, What, code_of
from penstock.testing.harness import Bench
from penstock.testing.inspection import AnyTask, Looking


class Mishaps(Looking):
    """The part of a sandbox that breaks things. What is asked for and never happens fails the test.

    Several for one task happen in the order they were asked for, one to each attempt.
    """

    _bench: Bench

    def crash(self, task: AnyTask, at: At = "after", *, times: int | None = 1) -> None:
        """Let the process of the task's next attempt die: ``before`` the handler is called,
        ``during`` (after its first line), before so many-th line that it runs, or ``after`` it has
        done everything, before anybody knows.

        As after ``kill -9`` the job is rescued when the lease has run out: ``advance`` by that,
        and it runs again. The second time it is a child process that dies, and the job is ready at
        once; the third time it fails. In the handler a ``Crash`` is raised there, which is no
        ``Exception``: ``finally`` and ``with`` run, as they would not in a dead process.
        """
        if isinstance(at, bool) or (isinstance(at, int) and at < 1):
            raise BadOption("at", at, "give 'before', 'during', 'after', or a line from 1 up")
        if not isinstance(at, int) and at not in ("before", "during", "after"):
            raise BadOption("at", at, "give 'before', 'during', 'after', or a line from 1 up")
        self._add("a crash", task, times, at=at)

    def fail(
        self,
        task: AnyTask,
        error: BaseException | type[BaseException] | None = None,
        *,
        times: int | None = 1,
    ) -> None:
        """Let the task's next attempts raise ``error`` in place of the handler; None: for ever."""
        self._add("a failure", task, times, error=error)

    def time_out(self, task: AnyTask, *, times: int | None = 1) -> None:
        """Let the task's next attempts run out of time, before the first line of the handler."""
        spec = self._known(task).spec
        if spec.timeout is None:
            why = "the task has no timeout, so it never runs out of time; declare timeout=..."
            raise BadOption("task", spec.name, why)
        self._add("a time-out", task, times)

    @contextmanager
    def store_down(self) -> Iterator[None]:
        """Let the store be away: what the app asks of it raises ``EngineUnavailable``."""
        was_down = self._bench.script.is_down
        self._bench.script.down()
        try:
            yield
        finally:
            if not was_down:
                self._bench.script.up()

    def lose_reply(self, verb: str = "enqueue", *, times: int = 1) -> None:
        """Let the app's next call happen and its answer be lost: ``EngineUnavailable``, though the
        job is stored. An id of your own makes it safe to enqueue again.
        """
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise BadOption("times", times, "give a whole number from 1")
        self._bench.script.fail(verb, when="after", times=times)

    def _check_replies(self) -> None:
        """Raise ``UnusedFault`` for a reply that was to be lost and never came."""
        for verb, times in self._bench.script.forgo().items():
            raise UnusedFault("the loss of a reply", verb, times)

    def _add(
        self,
        what: What,
        task: AnyTask,
        times: int | None,
        *,
        at: At = "before",
        error: BaseException | type[BaseException] | None = None,
    ) -> None:
        spec = self._known(task).spec
        if error is not None and not _is_error(error):
            raise BadOption("error", error, "give an exception, or a class of exceptions")
        if times is not None and (isinstance(times, bool) or times < 1):
            raise BadOption("times", times, "give a whole number from 1, or None for always")
        if what == "a time-out" or at not in ("before", "after"):
            code_of(spec.function)
        self._bench.faults.add(Fault(what, spec.name, times, at, error))


def _is_error(value: object) -> bool:
    is_class = isinstance(value, type) and issubclass(value, BaseException)
    return is_class or isinstance(value, BaseException)
