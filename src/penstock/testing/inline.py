"""The ways from an app to its store, while a test has put a sandbox there.

Each call is made as it always is. In the mode ``inline`` jobs that it has enqueued run before it
returns: not where an attempt runs already, for they run when that one has ended. Between turns of
an interleaving, a call to the store counts as a wait for something outside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.sync import Facade

WAITS: Final = ("result", "aresult")
"""The calls that wait for other jobs, not for the store."""


class Detour:
    """Stands before the calls of one façade, from ``begin`` to ``end``."""

    def __init__(
        self,
        facade: Facade,
        *,
        outside: Callable[[], None],
        run: Callable[[bool], None],
        arun: Callable[[], Awaitable[None]],
    ) -> None:
        self._facade = facade
        self._outside = outside
        self._run = run
        self._arun = arun
        self._before: dict[str, Any] = {}
        self._is_here = False

    def begin(self) -> None:
        """Stand before the calls."""
        self._before = {name: getattr(self._facade, name) for name in ("call", "ask")}
        vars(self._facade).update(call=self.call, ask=self.ask)
        self._is_here = True

    def end(self) -> None:
        """Step aside: one that came later and is still there finds us silent."""
        self._is_here = False
        for name in self._before:
            found = vars(self._facade).pop(name, None)
            while isinstance(owner := getattr(found, "__self__", None), Detour):
                if owner._is_here:
                    vars(self._facade)[name] = found
                    break
                found = owner._before[name]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Facade.call``."""
        if self._is_here and kwargs.get("what") in WAITS:
            self._run(True)
        answer = self._before["call"](*args, **kwargs)
        if self._is_here:
            self._run(False)
        return answer

    async def ask(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Facade.ask``."""
        home = self._facade._home
        if home is not None and home.is_here():  # a part of a call that somebody else has made
            return await self._before["ask"](*args, **kwargs)
        if self._is_here and kwargs.get("what") in WAITS:
            await self._arun()
        elif self._is_here:
            self._outside()
        answer = await self._before["ask"](*args, **kwargs)
        if self._is_here:
            await self._arun()
        return answer
