"""The dead processes that are nobody's: who is process 1 of a container inherits them.

What a handler has started, and what has outlived its worker process, becomes a child of process 1
when its parent dies. If that is the supervisor, it has to take note of their deaths, or the list of
processes fills up with them.
"""

from __future__ import annotations

import os
from collections.abc import Container


def reap_adopted(own: Container[int]) -> None:
    """Let dead children go, except ``own`` ones: somebody still needs their exit codes."""
    if not hasattr(os, "waitid"):
        return
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None or dead.si_pid in own:
                return  # the others have their turn when it is gone
            os.waitid(os.P_PID, dead.si_pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return
