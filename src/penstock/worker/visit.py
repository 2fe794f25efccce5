"""A generator with one yield, from its first step to its last: what hooks are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, Final

from penstock.errors import BadHook

_END: Final = (StopIteration, StopAsyncIteration)


class Visit:
    """One run of a generator, sync or async. Of a sync one nothing here ever waits."""

    __slots__ = ("_generator", "_role", "name")

    def __init__(
        self, generator: Generator[Any, Any, Any] | AsyncGenerator[Any, Any], name: str, role: str
    ) -> None:
        self._generator = generator
        self.name = name
        self._role = role

    async def enter(self) -> Any:
        """Run it to its yield and return what it yields.

        On failure: what it raises; BadHook if it ends before.
        """
        try:
            if isinstance(self._generator, AsyncGenerator):
                return await anext(self._generator)
            return next(self._generator)
        except _END:
            why = "it ended without a yield; let it yield once, whatever happens before"
            raise BadHook(self.name, self._role, why) from None

    async def leave(
        self, value: object = None, error: BaseException | None = None
    ) -> BaseException | None:
        """Run it to its end: from its yield it gets ``value``, or ``error`` raised there.

        Returns what it raises, which may be that same ``error``; None if nothing. So an error that
        a coroutine cannot raise, StopIteration, passes unchanged.
        """
        trace = None if error is None else error.__traceback__
        generator = self._generator
        try:
            if isinstance(generator, AsyncGenerator):
                await (generator.asend(value) if error is None else generator.athrow(error))
            elif error is None:
                generator.send(value)
            else:
                generator.throw(error)
        except _END:
            return None
        except BaseException as raised:
            if error is not None and (raised is error or _is_veiled(raised, error)):
                return error.with_traceback(trace)  # without the way through here
            return raised
        await self._close()
        why = "it yielded twice; let it yield once, and clean up after that"
        return BadHook(self.name, self._role, why)

    async def _close(self) -> None:
        try:
            if isinstance(self._generator, AsyncGenerator):
                await self._generator.aclose()
            else:
                self._generator.close()
        except BaseException:
            pass  # that it yielded twice is told already


def _is_veiled(raised: BaseException, error: BaseException) -> bool:
    """It is what Python makes of a StopIteration that leaves a generator."""
    return (
        isinstance(raised, RuntimeError) and isinstance(error, _END) and raised.__cause__ is error
    )
