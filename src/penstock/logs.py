"""Log lines that know the attempt in which they were written, as text or as JSON.

    with logs.context():               # a worker does this while it runs
        ...

    logs.configure("json")             # `penstock worker` does this, once

Inside an attempt every record, of any library, has ``job``, ``task``, ``attempt``, ``queue``,
``correlation_id`` and ``worker``; outside of one they are None. Such a line is a sign of life, too.
A thread that a handler starts by itself is outside, unless it runs in a copy of the context.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from traceback import format_exception_only
from typing import Any, Final, Literal, TextIO

import msgspec

from penstock.context import CURRENT, Context
from penstock.core.job import Job, State
from penstock.core.redaction import HIDDEN, is_secret, redacted
from penstock.errors import BadOption

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")

ATTEMPT: Final = ("job", "task", "attempt", "queue", "correlation_id", "worker")
"""What a record says of the attempt it was written in."""


def say(
    logger: logging.Logger,
    level: int,
    event: str,
    /,
    *,
    exc_info: BaseException | None = None,
    trace: str | None = None,
    **fields: object,
) -> None:
    """Write one event with its fields: ``worker joined worker=w1 tasks=3``.

    ``trace`` is what formatters show as the traceback, written once already; handlers that send
    exceptions elsewhere, as Sentry's does, find the exception itself in ``exc_info``.
    """
    if not logger.isEnabledFor(level):
        return
    text = event + "".join([f" {name}={_word(value)}" for name, value in fields.items()])
    raised = None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__)
    # As ``logger.log`` does it, but without its search for the caller through all frames.
    caller = sys._getframe(1)
    place = (caller.f_code.co_filename, caller.f_lineno)
    said = (logger.name, level, *place, "%s", (text,), raised, caller.f_code.co_name)
    try:
        record = logger.makeRecord(*said, {"event": event, "fields": fields})
    except KeyError:  # a record factory of the user has taken one of the two names
        record = logger.makeRecord(*said)
    if trace is not None:
        record.exc_text = trace.rstrip()
    logger.handle(record)


def say_given_up(logger: logging.Logger, job: str, reason: str, /, **facts: Any) -> None:
    """Write that a job has failed of a crash: too many of them, or the one after which a job that
    runs at most once may have run.
    """
    say(logger, logging.ERROR, "job given up", job=job, **facts, reason=reason)


def say_rescued(logger: logging.Logger, rescued: Iterable[Job]) -> None:
    """Write which of the jobs that were taken from dead workers are given up."""
    for job in rescued:
        if job.state is State.FAILED:
            facts: dict[str, Any] = {
                "task": job.task,
                "queue": job.queue,
                "attempt": job.attempt,
                "crashes": job.crashes,
            }
            if job.correlation_id is not None:
                facts["correlation_id"] = job.correlation_id
            say_given_up(logger, job.id, job.reason or "", **facts)


class OutageLog:
    """Writes once that the store is away and once that it is back. Any thread may call.

    Callers that go on trying have names. The outage lasts until each of them that failed has
    succeeded: a full disk refuses claims and still takes beats.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._failing: set[str] = set()
        self._lock = threading.Lock()

    def failed(self, caller: str, verb: str, error: Exception) -> None:
        """A call failed: a warning if that is news, else a detail."""
        with self._lock:
            level = logging.DEBUG if self._failing else logging.WARNING
            self._failing.add(caller)
        kind = type(error).__name__
        say(self._logger, level, "store unavailable", verb=verb, error=kind, why=str(error))

    def succeeded(self, caller: str) -> None:
        """A call succeeded; where nothing has failed, this costs nothing."""
        if caller not in self._failing:
            return
        with self._lock:
            self._failing.discard(caller)
            is_over = not self._failing
        if is_over:
            say(self._logger, logging.INFO, "store available again")


# --- the attempt in every record ----------------------------------------------------------------


@contextmanager
def context() -> Iterator[None]:
    """Let records know their attempt, as long as one block of this kind is open in this process.

    Afterwards the record factory is again what it was, unless another was set meanwhile:
    that one stays, and ours, if it is still called, does nothing.
    """
    with _CHANGE:
        factory = logging.getLogRecordFactory()
        if not isinstance(factory, _Factory):
            factory = _Factory(factory)
            logging.setLogRecordFactory(factory)
        factory.users += 1
    try:
        yield
    finally:
        with _CHANGE:
            factory.users -= 1
            if not factory.users and logging.getLogRecordFactory() is factory:
                logging.setLogRecordFactory(factory.former)


_CHANGE: Final = threading.RLock()


class _Factory:
    """Makes records as the former factory does, and adds what is known of the attempt."""

    def __init__(self, former: Any) -> None:
        self.former = former
        self.users = 0

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self.former(*args, **kwargs)
        if self.users:
            try:
                _add_attempt(record, CURRENT.get(None))
            except Exception:
                pass  # a line without its job is better than none
        return record


def _add_attempt(record: logging.LogRecord, attempt: Context | None) -> None:
    attributes = _Attributes(record.__dict__)
    for name, fact in _OUTSIDE if attempt is None else _facts(attempt).items():
        attributes.setdefault(name, fact)
    record.__dict__ = attributes
    if attempt is not None:
        attempt.alive()


def _facts(attempt: Context) -> dict[str, Any]:
    job = attempt.job
    return {
        "job": job.id,
        "task": job.task,
        "attempt": job.attempt,
        "queue": job.queue,
        "correlation_id": job.correlation_id,
        "worker": job.worker,
    }


_OUTSIDE: Final = tuple((name, None) for name in ATTEMPT)


class _Attributes(dict[str, Any]):
    """A record's attributes, of which ours may be given as ``extra``, too.

    Logging refuses an ``extra`` whose name the record has already. Code that says ``extra={"job":
    ...}`` must not break because a worker runs it.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return name not in ATTEMPT and super().__contains__(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


# --- formats ------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """``12:03:04.123 INFO  worker joined worker=w1``: for people, one line and then the traceback.

    Inside an attempt the line ends with its job, attempt and correlation id.
    """

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        at = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        level = f"{record.levelname:<5}"
        if self._colours:
            level = _coloured(level, record.levelno)
        whose = "" if _is_ours(record) else f"{record.name}: "
        line = f"{at} {level} {whose}{_one_line(record.getMessage())}"
        for name, label in _SHOWN:
            value = getattr(record, name, None)
            if value is not None and f" {label}=" not in line:
                line += f" {label}={_word(value)}"
        return "\n".join((line, *_trace(self, record)))


_SHOWN: Final = (("job", "job"), ("attempt", "attempt"), ("correlation_id", "correlation"))
_COLOURS: Final = ((logging.ERROR, "31"), (logging.WARNING, "33"), (logging.INFO, "32"))


def _coloured(text: str, level: int) -> str:
    colour = next((code for least, code in _COLOURS if level >= least), "")
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what is not known is left out.

    Keys: at, level, logger, message, event, job, task, attempt, queue, correlation_id, worker,
    error, traceback; the fields of our events and whatever was given as ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "event": getattr(record, "event", None),
            **{name: getattr(record, name, None) for name in ATTEMPT},
        }
        fields = getattr(record, "fields", None)
        is_event = isinstance(fields, dict) and _is_ours(record)
        extra = {name: value for name, value in record.__dict__.items() if name not in _USUAL}
        more = {**_hidden(extra), **(fields if is_event and fields else {})}
        if is_event:
            more.pop("fields", None)
        for name, value in more.items():
            if line.get(name) is None:
                line[name] = value
        if record.exc_info and record.exc_info[1] is not None and "reason" not in more:
            line["error"] = "".join(format_exception_only(record.exc_info[1])).strip()
        if trace := _trace(self, record):
            line["traceback"] = "\n".join(trace)
        known = {_text(name): _plain(value) for name, value in line.items() if value is not None}
        return msgspec.json.encode(known).decode()


_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(
    format: Literal["text", "json"] = "text",
    level: str | int = "info",
    stream: TextIO | None = None,
) -> None:
    """Write all that is logged in this process to ``stream``, by default standard error.

    Called again, it changes that. Other handlers stay. Colours are for terminals, and not for those
    who set NO_COLOR.
    """
    if format not in FORMATS:
        raise BadOption("format", format, f"give one of {', '.join(FORMATS)}")
    if isinstance(level, str):
        if level.lower() not in LEVELS:
            raise BadOption("level", level, f"give one of {', '.join(LEVELS)}")
        level = level.upper()
    stream = sys.stderr if stream is None else stream
    handler = _Handler(stream)
    is_colourful = stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(
        JsonFormatter() if format == "json" else TextFormatter(colours=is_colourful)
    )
    root = logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)


def configured() -> tuple[str, int] | None:
    """The format and the level that ``configure`` has set; None: it was not called."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, _Handler):
            return "json" if isinstance(handler.formatter, JsonFormatter) else "text", root.level
    return None


def capture() -> None:
    """Log what Python would print by itself: warnings, and errors that are not caught.

    For processes that are all ours: an application has its own ways.
    """
    logging.captureWarnings(True)
    sys.excepthook = lambda _, error, __: _uncaught("error ended the process", error)
    sys.unraisablehook = lambda told: _uncaught("error ignored", told.exc_value)
    threading.excepthook = lambda told: _uncaught("error ended a thread", told.exc_value)


def _uncaught(event: str, error: BaseException | None) -> None:
    if not isinstance(error, SystemExit):
        say(logging.getLogger("penstock"), logging.ERROR, event, exc_info=error)


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that ``configure`` has set."""


# --- words --------------------------------------------------------------------------------------


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "penstock"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    found = [record.exc_text or ""]
    if record.exc_info and not record.exc_text:
        found = [formatter.formatException(record.exc_info)]
    if record.stack_info:
        found.append(formatter.formatStack(record.stack_info))
    return [part for part in found if part]


def _word(value: object) -> str:
    """A value in a line of text; in quotes where it would not be one word."""
    text = value if type(value) is str else _text(value)
    is_word = text and text.isprintable() and not ("=" in text or " " in text or '"' in text)
    return text if is_word else _QUOTED.encode(_text(text))


_QUOTED: Final = json.JSONEncoder(ensure_ascii=False)


def _hidden(extra: dict[str, Any]) -> dict[str, Any]:
    """What was given as ``extra``, without secrets; what holds itself is left as it is."""
    try:
        shown: dict[str, Any] = redacted(extra)
    except RecursionError:
        return {name: HIDDEN if is_secret(name) else value for name, value in extra.items()}
    return shown


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _text(value: object) -> str:
    """Any value as text that can be written."""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: object) -> Any:
    """Any value as JSON; what has none is written as Python would."""
    try:
        return msgspec.Raw(msgspec.json.encode(value, enc_hook=repr))
    except Exception:
        pass
    if isinstance(value, str):
        return _text(value)
    try:
        return _text(repr(value))
    except Exception:
        return f"<{type(value).__name__}>"
