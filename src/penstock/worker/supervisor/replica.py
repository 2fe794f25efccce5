"""One place in a supervisor's staff: who fills it, who is to follow, who is on the way out.

A process that ends is followed by another: at once after a good run, else after a pause that
doubles. One that is to be replaced goes on until its heir has joined, then it may end in peace; an
heir that does not get so far changes nothing.

If a process ends here, then

| here                                    | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| before the application is loaded, and   | the supervisor gives up at once: it was started wrong |
| nobody has ever joined                  |                                                       |
| before it has joined                    | again after a pause; ``LIMIT`` times in a row: a      |
|                                         | crash loop, the supervisor gives up                   |
| less than ``STEADY`` after it joined    | again after a pause                                   |
| later                                   | again at once                                         |
| as an heir, before it has joined        | the holder goes on                                    |
| on its way out                          | nobody follows                                        |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.worker.child.process import died
from penstock.worker.supervisor.log import StaffJournal
from penstock.worker.supervisor.replica_process import Member

STEADY: Final = 1.0
"""Seconds after its join that make a process's run a good one."""
FIRST: Final = 0.5
LONGEST: Final = 30.0
"""The first and the longest pause before a process is started again."""
LIMIT: Final = 5
"""Deaths in a row before a join that are a crash loop."""
LINGER: Final = 5.0
"""Seconds beyond all deadlines after which a process that should have ended is killed."""


class Employer(Protocol):
    """What a place needs of the supervisor."""

    @property
    def has_served(self) -> bool:
        """Somebody has joined once."""

    def hire(self, heard: Callable[[], None]) -> Member:
        """Start a process; ``OSError``: there is no room for one."""

    def bury(self, member: Member) -> None:
        """See to what a dead process has left."""

    def give_up(self, why: str, *, is_usage: bool) -> None:
        """Stop everything: this cannot become good."""


class Post:
    """One place in the staff. Everything happens on the supervisor's loop, in ``keep``."""

    def __init__(
        self,
        employer: Employer,
        clock: Clock,
        journal: StaffJournal,
        *,
        waits_for_change: bool = False,
    ) -> None:
        self.holder: Member | None = None
        self.heir: Member | None = None
        self.leaving: list[Member] = []
        self.is_finished = False
        """Nothing was left to do, and its holder was told to end then."""
        self._employer = employer
        self._clock = clock
        self._journal = journal
        self._waits_for_change = waits_for_change
        self._wake = asyncio.Event()
        self._is_over = False
        self._bad_runs = 0
        self._never_joined = 0
        self._hire_at = 0.0
        self._heir_at = 0.0
        self._asked: str | None = None
        """Why somebody wants the one who is ``_old`` replaced."""
        self._old: Member | None = None
        self._drain: tuple[float | None, float] = (None, inf)
        self._answer: asyncio.Future[bool] | None = None

    @property
    def members(self) -> list[Member]:
        """Every process of this place that is not known to be dead."""
        return [*filter(None, (self.holder, self.heir)), *self.leaving]

    @property
    def is_filled(self) -> bool:
        """Its holder has joined."""
        return self.holder is not None and self.holder.joined_at is not None

    def wake(self) -> None:
        """Something has happened to one of its processes."""
        self._wake.set()

    async def keep(self) -> None:
        """Keep the place filled until it is over, and until everybody has gone."""
        while True:
            self._wake.clear()
            self._reap()
            self._succeed()
            if not self._is_over:
                self._fill()
            elif not self.members:
                return
            await self._clock.wait(self._wake, self._pause())

    # --- orders --------------------------------------------------------------------------------

    def stop(self, seconds: float, grace: float) -> None:
        """End it: what runs may go on for so many seconds."""
        self._is_over = True
        self._tell_answer(False)
        until = self._clock.monotonic() + seconds + grace + LINGER
        for member in self.members:
            if member.loaded is None:
                member.kill()  # it has no jobs yet, and cannot hear while it imports
            else:
                member.drain(seconds, until)
        self.wake()

    def kill(self) -> None:
        """End it without mercy."""
        self._is_over = True
        for member in self.members:
            member.kill()
        self.wake()

    def replace(
        self, reason: str, *, drain: float | None = None, grace: float = 0.0
    ) -> asyncio.Future[bool]:
        """Let a new process take over; the result says whether it could.

        The old one's attempts may go on for ``drain`` seconds, None: until they end.
        """
        self._tell_answer(False)
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self._is_over:
            self._tell_answer(False)
            return answer
        self._asked, self._drain = reason, (drain, grace)
        self._hire_at = self._heir_at = 0.0
        self._bad_runs = self._never_joined = 0
        if self.heir is not None:  # it may have loaded what is old by now
            self._dismiss(self.heir)
            self.heir = None
        if self.holder is not None and self.holder.loaded is None:
            self._dismiss(self.holder)
            self.holder = None
        self._old = self.holder
        self.wake()
        return answer

    def forget_wish(self) -> None:
        """Let nobody wait for a replacement any longer."""
        self._tell_answer(False)

    # --- one turn ------------------------------------------------------------------------------

    def _reap(self) -> None:
        now = self._clock.monotonic()
        for member in self.members:
            if not member.look(now):
                continue
            self._employer.bury(member)
            if member is self.heir:
                self.heir = None
                self._no_heir(_last_word(member))
            elif member is self.holder:
                self.holder = None
                self._vacant(member, now)
            else:
                self.leaving.remove(member)
                self._tell_end(member)

    def _succeed(self) -> None:
        """Let an heir that has joined take the place."""
        heir, holder = self.heir, self.holder
        if heir is not None and (holder is None or heir.joined_at is not None):
            self.heir = None
            self.holder = heir
            if holder is not None:
                self._retire(holder)
        if self.is_filled and self.holder is not self._old:
            self._asked = None
            self._tell_answer(True)

    def _retire(self, holder: Member) -> None:
        drain, grace = self._drain
        until = None if drain is None else self._clock.monotonic() + drain + grace + LINGER
        holder.drain(drain, until)
        self.leaving.append(holder)
        assert self.holder is not None
        reason = self._asked or holder.wants_out or ""
        self._journal.replaced(holder.pid, self.holder.pid, reason)
        self._drain = None, inf

    def _fill(self) -> None:
        now = self._clock.monotonic()
        if self.holder is None:
            if self.heir is None and now >= self._hire_at:
                self.holder = self._hired()
        elif self.heir is None and self._wants_heir() and now >= self._heir_at:
            self.heir = self._hired()

    def _wants_heir(self) -> bool:
        holder = self.holder
        if holder is None or holder.is_told:
            return False
        return holder.wants_out is not None or self._asked is not None

    def _hired(self) -> Member | None:
        try:
            return self._employer.hire(self.wake)
        except OSError as error:
            self._later(f"no process could be started: {error}")
            return None

    def _pause(self) -> float | None:
        """How long nothing has to happen here unless somebody says so."""
        if self._is_over:
            return None
        now = self._clock.monotonic()
        if self.holder is None:
            return max(0.0, self._hire_at - now) if self._hire_at < inf else None
        if self.heir is None and self._wants_heir():
            return max(0.0, self._heir_at - now)
        return None

    # --- when things go wrong ------------------------------------------------------------------

    def _vacant(self, member: Member, now: float) -> None:
        """The holder has ended: decide about the next one."""
        self._tell_end(member)
        if member.is_done and member.code == 0 and not self._is_over:
            self._finish()
        elif self._is_over or self.heir is not None:
            return
        elif member.joined_at is not None and now - member.joined_at >= STEADY:
            self._bad_runs = self._never_joined = 0
            self._hire_at = now
        else:
            if member.joined_at is not None:
                self._never_joined = 0
            else:
                self._never_joined += 1
                self._tell_answer(False)
            self._after_a_bad_run(member)

    def _after_a_bad_run(self, member: Member) -> None:
        word, failed = _last_word(member), member.failed
        is_unloadable = failed is not None and member.loaded is None
        is_usage = failed is not None and failed.is_usage
        if self._waits_for_change and member.joined_at is None:
            self._hire_at = inf
            self._journal.waits_for_change(word)
        elif is_unloadable and not self._employer.has_served:
            self._employer.give_up(word, is_usage=is_usage)
        elif self._never_joined >= LIMIT:
            why = f"a process ended {LIMIT} times in a row before it could work: {word}"
            self._employer.give_up(why, is_usage=is_usage)
        else:
            self._later(word)

    def _later(self, word: str) -> None:
        self._bad_runs += 1
        pause = min(LONGEST, FIRST * 2.0 ** min(self._bad_runs - 1, 30))
        self._hire_at = self._heir_at = self._clock.monotonic() + pause
        self._journal.starts_again(pause, word)

    def _no_heir(self, word: str) -> None:
        if self._is_over:
            return
        self._journal.no_heir(word)
        self._tell_answer(False)
        self._heir_at = self._clock.monotonic() + LONGEST
        self._asked = None  # whoever asked was told

    def _finish(self) -> None:
        """Nothing is left to do for this place."""
        self._is_over = self.is_finished = True
        self._tell_answer(True)
        if self.heir is not None:
            self._dismiss(self.heir)
            self.heir = None

    def _dismiss(self, member: Member) -> None:
        """Let go of one that has not joined; if it has by now, its jobs are given back."""
        member.drain(0.0, self._clock.monotonic() + LINGER)
        if member.loaded is None:
            member.kill()
        self.leaving.append(member)

    def _tell_end(self, member: Member) -> None:
        is_expected = member.code == 0 or member.is_killed or member.failed is not None
        self._journal.ended(member.pid, died(member.code or 0), is_expected=is_expected)

    def _tell_answer(self, could: bool) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(could)


def _last_word(member: Member) -> str:
    if member.failed is not None:
        return member.failed.message
    return f"process {member.pid} {died(member.code or 0)} and did not say why"
