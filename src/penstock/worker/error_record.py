"""What an exception leaves behind: its kind, its message, a traceback without our own frames."""

from __future__ import annotations

import os
from collections.abc import Collection
from types import TracebackType
from typing import Final

from penstock.core.job import ErrorRecord, Job
from penstock.core.metadata import redacted_names
from penstock.core.redaction import redacted_text, redacted_traceback, secret_values, without
from penstock.worker.tracebacks import TracebackWriter

LONGEST_MESSAGE: Final = 4_000
LONGEST_TRACEBACK: Final = 16_000

_OURS: Final = (
    os.path.dirname(__file__) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "core") + os.sep,
)

_WRITER: Final = TracebackWriter()


def error_record(
    error: BaseException, job: Job, at: float, worker: str, redact: Collection[str] = ()
) -> ErrorRecord:
    """Write down how this attempt went wrong; never fails, whatever the exception does.

    Secret arguments are hidden, those that the task calls so in ``redact`` among them: what is not
    written down is shown nowhere.
    """
    values = secret_values(job.payload, (*redact, *redacted_names(job.meta)))
    traceback = _traceback_of(error)
    return ErrorRecord(
        attempt=job.attempt,
        at=at,
        kind=kind_of(error),
        message=redacted_text(without(message_of(error), values)),
        traceback=None if traceback is None else redacted_traceback(traceback, values),
        worker=worker,
    )


def kind_of(error: BaseException) -> str:
    """The exception's class, as it would be imported; builtins by their bare name."""
    kind = type(error)
    module = getattr(kind, "__module__", None)
    name = storable(str(getattr(kind, "__qualname__", kind)), LONGEST_MESSAGE)
    return name if module in (None, "builtins") else f"{module}.{name}"


def message_of(error: BaseException) -> str:
    """What the exception says of itself."""
    try:
        return storable(str(error), LONGEST_MESSAGE)
    except BaseException as trouble:  # it is the user's code, and may even exit
        return f"its message cannot be read: {type(trouble).__name__}"


def summary_of(error: BaseException) -> str:
    """Kind and message in one line, as the last line of a traceback has them."""
    message = message_of(error)
    return f"{kind_of(error)}: {message}" if message else kind_of(error)


def storable(text: str, longest: int) -> str:
    """The text as every store can keep it: bounded, without NUL and lone surrogates."""
    if len(text) > longest:
        head = longest // 4
        cut = len(text) - longest
        text = f"{text[:head]}\n... {cut} characters left out ...\n{text[head - longest :]}"
    if text.isascii() and "\x00" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _traceback_of(error: BaseException) -> str | None:
    """The traceback from the handler on; None if no code but ours was reached."""
    cause = error.__cause__.__traceback__ if error.__cause__ is not None else None
    frames = _below_us(error.__traceback__)
    if frames is None and _below_us(cause) is None:
        return None
    try:
        return storable(_WRITER.write(error, frames), LONGEST_TRACEBACK)
    except BaseException:
        return None


def _below_us(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return frames
