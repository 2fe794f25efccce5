"""Which claims of a worker are over: nothing of what they gave is left in its hands.

The store keeps a row for each claim, by which it finds what runs. Nobody but the worker knows without
looking when such a row has served its purpose. What is said here is a hint: the store looks before
it deletes, so a job that was counted wrongly is found all the same, and a claim that nobody counts,
because a reply was lost, goes with its worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.job import Job, Outcome, Verdict


class Claims:
    """The claims of the worker that a handle speaks for."""

    def __init__(self) -> None:
        self._worker = ""
        self._numbers: dict[str, int] = {}
        """Under which number each job was claimed."""
        self._left: dict[int, int] = {}
        """How many jobs of a claim have not been settled."""
        self._over: list[int] = []

    def took(self, worker: str, number: int, jobs: Sequence[Job]) -> None:
        """A claim has given these jobs."""
        self._be(worker)
        self._left[number] = len(jobs)
        self._numbers.update(dict.fromkeys((job.id for job in jobs), number))

    def settled(self, outcomes: Iterable[Outcome], verdicts: Iterable[Verdict]) -> None:
        """These outcomes were answered: unless they come again, the jobs are the worker's no more."""
        for outcome, verdict in zip(outcomes, verdicts, strict=True):
            if verdict is Verdict.LATER:
                continue
            number = self._numbers.pop(outcome.job, None)
            if number is None:
                continue
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number]
                self._over.append(number)

    def over(self, worker: str) -> list[int]:
        """Take the claims that are over, to tell the store."""
        self._be(worker)
        over, self._over = self._over, []
        return over

    def again(self, over: Sequence[int]) -> None:
        """The store may not know of them."""
        self._over += over

    def _be(self, worker: str) -> None:
        """After a lost lease the old name's claims are for those who rescue."""
        if worker != self._worker:
            self._worker = worker
            self._numbers.clear()
            self._left.clear()
            self._over.clear()
