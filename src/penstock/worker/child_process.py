"""The worker's side of a suspect's child process: start it, listen to it, kill it.

The child is a plain ``python -c``, not a ``multiprocessing`` one: that would run the user's main
script once more, with whatever it does when it is run. It leads a process group: what the handler
starts in it is killed with it.

If the child dies

| here             | then                                                                      |
|------------------|---------------------------------------------------------------------------|
| before ``Began`` | the task was never reached: ``Unfit``                                     |
| after ``Began``  | the code it died with: the job has killed it                              |
| after ``Ended``  | its outcome stands                                                        |
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.spawn import get_executable
from typing import Final

from penstock.worker.attempt import Attempt
from penstock.worker.child_frames import Began, Ended, Frame, Request, Said, Unfit, read, write

LINGER: Final = 2.0
"""Seconds that a child may take to exit after its last word."""

_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); del sys.argv[1:]; "
    "from penstock.worker.child import main; main()"
)


class ChildProcess:
    """One child for one attempt. A thread of its own does what blocks."""

    def __init__(self, attempt: Attempt, began: Callable[[], None]) -> None:
        self._attempt = attempt
        self._began = began
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._lock = threading.Lock()

    async def run(self, request: Request) -> Unfit | Ended | int:
        """Run the attempt; return the child's last word, or the code it died with."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Unfit | Ended | int] = loop.create_future()
        threading.Thread(
            target=self._live, args=(request, loop, answer), name="penstock-child", daemon=True
        ).start()
        try:
            return await answer
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._lock:
            self._is_killed = True
            if self._process is not None and self._process.returncode is None:
                _kill_group(self._process)

    # --- in the thread -------------------------------------------------------------------------

    def _live(
        self,
        request: Request,
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[Unfit | Ended | int],
    ) -> None:
        process = None
        try:
            process = self._start()
            said = self._converse(process, request, loop)
        except Exception as error:  # no memory for a process, no file descriptors, no loop
            said = Unfit(f"{type(error).__name__}: {error}")
        try:
            loop.call_soon_threadsafe(_answer, answer, said)
        except RuntimeError:
            pass  # the loop is closed: nobody waits
        if process is not None:
            _part(process)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            get_executable() or sys.executable,
            "-c",
            _PROGRAM,
            json.dumps([str(place) for place in sys.path]),
        ]
        with self._lock:
            if self._is_killed:
                raise ChildProcessError("it is not wanted any more")
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            return self._process

    def _converse(
        self,
        process: subprocess.Popen[bytes],
        request: Request,
        loop: asyncio.AbstractEventLoop,
    ) -> Unfit | Ended | int:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write(process.stdin, request)
        except OSError:
            pass  # it is dead already, as reading will tell
        has_begun = False
        while True:
            frame: Frame | None = read(process.stdout, Frame)
            match frame:
                case Began():
                    has_begun = True
                    loop.call_soon_threadsafe(self._began)
                case Said(report):
                    self._attempt.context.progress(report.fraction or 0.0, report.note or "")
                case Unfit() | Ended():
                    return frame
                case None:
                    code = process.wait()
                    _kill_group(process)
                    return code if has_begun else Unfit(f"the child {died(code)} on its way")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child with all that it started, also if it is dead itself."""
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left; macOS says it so of a zombie


def _part(process: subprocess.Popen[bytes]) -> None:
    """Let a child that has said its last word exit, and see that it does."""
    # What it never read is flushed once more when its standard input is closed.
    with suppress(OSError), process:
        try:
            process.wait(LINGER)
        except subprocess.TimeoutExpired:
            process.kill()


def _answer(answer: asyncio.Future[Unfit | Ended | int], said: Unfit | Ended | int) -> None:
    if not answer.done():
        answer.set_result(said)


def died(code: int) -> str:
    """How a process came to its end, in words."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
