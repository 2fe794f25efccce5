"""Every error Penstock raises, in one tree.

    PenstockError
    ├── UsageError                  the call is wrong; the same call will fail again
    │   ├── BadDuration             (ValueError)
    │   ├── BadPriority             (ValueError)
    │   ├── BadPolicy               (ValueError)
    │   ├── BadOption               (ValueError)
    │   ├── BadArguments            (TypeError)
    │   ├── BadItem                 (ValueError)
    │   ├── BadTask                 (TypeError)
    │   ├── BadHook                 (TypeError)
    │   ├── DuplicateTask           (ValueError)
    │   ├── NotIncluded             (AttributeError)
    │   ├── Unencodable             (TypeError)
    │   ├── PayloadTooLarge         (ValueError)
    │   ├── BadCheckpoint           (TypeError)
    │   ├── CheckpointTooLarge      (ValueError)
    │   ├── NoCheckpoint            (RuntimeError)
    │   ├── UnknownScheme           (ValueError)
    │   ├── MissingDriver           (ImportError)
    │   ├── MissingEngine           (ImportError)
    │   ├── WrongConnection         (ValueError)
    │   ├── WrongThread             (RuntimeError)
    │   ├── WrongProcess            (RuntimeError)
    │   ├── CannotHost              (RuntimeError)
    │   ├── AppNotFound             (ImportError)
    │   └── Unpicklable             (TypeError)
    ├── BadPayload                  stored arguments do not fit the task's signature
    │   └── NotAnObject             they are not a JSON object at all
    ├── JobError                    about one job
    │   ├── JobFailed
    │   ├── JobCancelled
    │   ├── JobGone                 (LookupError)
    │   │   └── JobUncommitted      its transaction is open, or was rolled back
    │   ├── ResultTimeout           (TimeoutError)
    │   ├── UniqueConflict
    │   ├── IdConflict
    │   ├── WrongState
    │   └── WrongTask               the job is of another task than the handle
    ├── ProcessFailed               a worker process cannot work
    ├── CannotIsolate               an attempt found no child process to run in
    ├── MemoryExceeded              (MemoryError) an attempt was killed for what it used
    ├── NoTransaction               (LookupError) an attempt has no transaction to write in
    ├── TransactionEnded            a handler has ended the transaction that ends its job
    ├── TransactionAborted          a handler has swallowed what its transaction failed of
    ├── CommitLost                  the answer to a COMMIT did not come
    └── EngineError                 the store said no
        ├── EngineUnavailable       repeating the call may help
        │   ├── EngineBusy
        │   ├── EngineCrowded
        │   ├── EngineReentered
        │   ├── EngineReplaced
        │   └── EngineTimeout       (TimeoutError)
        ├── EngineRefused           the server does not let this user in
        ├── EngineForbidden         the server does not allow this user to do this
        ├── EngineUnsuitable        this server or database cannot hold a store
        ├── EngineReadOnly
        ├── EngineFull
        ├── EngineCorrupt
        ├── EngineClosed
        ├── StoreMissing            (LookupError)
        ├── SchemaMismatch
        ├── ItemRefused             one item of a batch cannot be stored
        │   └── ItemContested       not now: an open transaction has its id or unique key
        └── LeaseLost               this worker is no longer known

Facts are attributes; ``str`` is the sentence: what is wrong, with the value, then the next step.
What a driver raised is the ``__cause__``.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(eq_default=False)
class PenstockError(Exception):
    """Something Penstock can name went wrong.

    The facts of an error are the attributes that its class annotates, in their order, as those of
    a dataclass, without the code that each one would generate at import.
    """

    _facts: ClassVar[tuple[str, ...]] = ()
    _sentence: ClassVar[str] = ""
    """What ``str`` says, with the facts in braces; classes that need more have a ``__str__``."""

    def __init_subclass__(cls) -> None:
        own = get_annotations(cls)
        cls._facts = (*cls._facts, *(name for name in own if name not in cls._facts))

    def __init__(self, *values: Any, **named: Any) -> None:
        names, kind = self._facts, type(self)
        if not names:  # then its sentence is all there is
            Exception.__init__(self, *values, **named)
            return
        facts = dict(zip(names, values, strict=False))
        wrong = [name for name in named if name in facts or name not in names]
        missing = [name for name in names if not (name in facts or name in named)]
        missing = [name for name in missing if not hasattr(kind, name)]
        if len(values) > len(names) or wrong or missing:
            given = f"{len(values)} values and {sorted(named)} were given"
            raise TypeError(f"{kind.__name__} takes {', '.join(names) or 'nothing'}; {given}")
        self.__dict__.update(facts, **named)

    def __str__(self) -> str:
        if not self._sentence:
            return super().__str__()
        return self._sentence.format(**{name: getattr(self, name) for name in self._facts})

    def __repr__(self) -> str:
        if not self._facts:
            return super().__repr__()
        facts = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._facts)
        return f"{type(self).__name__}({facts})"

    def __reduce__(self) -> tuple[Any, ...]:
        sentence = () if self._facts else self.args
        return _rebuild, (type(self), sentence, dict(self.__dict__))


def _rebuild(
    kind: type[PenstockError], sentence: tuple[Any, ...], facts: dict[str, Any]
) -> PenstockError:
    """Unpickle an error from its facts, without calling its constructor."""
    error = kind.__new__(kind, *sentence)
    error.__dict__.update(facts)
    return error


# --- the call is wrong --------------------------------------------------------------------------


class UsageError(PenstockError):
    """The call is wrong and would fail again."""


class BadDuration(UsageError, ValueError):
    """A duration that cannot be read."""

    value: object
    why: str
    _sentence = (
        "{value!r} is not a duration: {why}; "
        "give seconds or text such as '90s', '5m', '1h30m', '3d'"
    )


class BadPriority(UsageError, ValueError):
    """A priority that is neither a known label nor a number in range."""

    value: object
    labels: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"unknown priority {self.value!r}; use one of {', '.join(self.labels)}, "
            "or a whole number from -1000 to 1000 (lower runs first)"
        )


class BadPolicy(UsageError, ValueError):
    """A retry policy that cannot be used."""

    value: object
    why: str
    _sentence = (
        "{value!r} is not a retry policy: {why}; "
        "give a number of retries, a list of delays, or one of penstock's policies"
    )


class BadOption(UsageError, ValueError):
    """An option whose value does not fit."""

    name: str
    value: object
    why: str
    _sentence = "{name}={value!r}: {why}"


class BadArguments(UsageError, TypeError):
    """Arguments that do not fit the task's signature."""

    task: str
    why: str
    _sentence = "{task}: {why}"


class BadItem(UsageError, ValueError):
    """One of many calls that does not fit; nothing of the list was stored."""

    task: str
    index: int
    error: UsageError
    _sentence = "item {index} is wrong and nothing was stored: {error}"


class BadTask(UsageError, TypeError):
    """A function that cannot be a task."""

    task: str
    why: str
    _sentence = "{task} cannot be a task: {why}"


class BadHook(UsageError, TypeError):
    """A function that cannot have the role it was given: a hook, a middleware, a dependency."""

    hook: str
    role: str
    why: str
    _sentence = "{hook} cannot be {role}: {why}"


class DuplicateTask(UsageError, ValueError):
    """A task name declared twice."""

    task: str
    first: str
    second: str
    _sentence = (
        "task {task!r} is already declared by {first}; "
        "give {second} its own name with @app.task(name=...)"
    )


class NotIncluded(UsageError, AttributeError):
    """A router's task that no app has taken in yet."""

    task: str
    _sentence = (
        "task {task!r} belongs to a Router that no app includes yet; "
        "say app.include(router) where the app is made, before the task is used"
    )


class Unencodable(UsageError, TypeError):
    """A value that has no JSON form."""

    task: str
    where: str
    why: str
    _sentence = (
        "{task}: {where} cannot be stored as JSON: {why}; "
        "pass plain data, a dataclass, a msgspec Struct or a pydantic model"
    )


class PayloadTooLarge(UsageError, ValueError):
    """Arguments or a result above the size limit."""

    task: str
    size: int
    limit: int
    setting: str = "max_payload"
    _sentence = (
        "{task}: {size} bytes are over the limit of {limit}; "
        "store the data elsewhere and pass a reference, or raise {setting}"
    )


class BadCheckpoint(UsageError, TypeError):
    """A checkpoint that the next attempt would not get back as it is."""

    task: str
    why: str
    _sentence = "{task}: {why}; save None, bool, int, float, str, list or dict"


class CheckpointTooLarge(UsageError, ValueError):
    """A checkpoint above 64 KiB."""

    task: str
    size: int
    limit: int
    _sentence = (
        "{task}: a checkpoint of {size} bytes is over the limit of {limit}; "
        "save where the work stands, such as an index or an id, and keep the data elsewhere"
    )


class NoCheckpoint(UsageError, RuntimeError):
    """A checkpoint in a task whose failed attempts leave nothing behind."""

    task: str
    _sentence = (
        "{task} is transactional: what a failed attempt wrote is undone, so the next one has to "
        "begin anew; leave ctx.checkpoint() out, or declare the task without transactional=True"
    )


class UnknownScheme(UsageError, ValueError):
    """A URL that names no engine."""

    url: str
    known: tuple[str, ...]
    instead: str | None = None
    """What was probably meant."""

    def __str__(self) -> str:
        if self.instead is not None:
            why = "names a driver, which Penstock chooses itself"
            return f"{self.url!r} {why}; write {self.instead!r}"
        known = ", ".join(self.known)
        return f"{self.url!r} does not name an engine; a URL starts with one of {known}"


class MissingDriver(UsageError, ImportError):
    """An engine whose driver is not installed."""

    scheme: str
    extra: str
    _sentence = "{scheme} needs a driver that is not installed: pip install 'penstock[{extra}]'"


class MissingEngine(UsageError, ImportError):
    """A scheme that is reserved for an engine this version does not have."""

    scheme: str
    present: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"this version of Penstock has no engine for {self.scheme} yet; "
            f"use one of {', '.join(self.present)}"
        )


class WrongConnection(UsageError, ValueError):
    """A connection of the caller's that jobs cannot be enqueued on."""

    connection: str
    """What it is: its package and class."""
    why: str
    _sentence = "no job can be enqueued on this {connection}: {why}"


class WrongThread(UsageError, RuntimeError):
    """A blocking call on the very loop that would have to answer it."""

    call: str
    _sentence = (
        "{call} would wait for itself: it was called on Penstock's own loop; "
        "use its async twin (aenqueue, aresult) there"
    )


class WrongProcess(UsageError, RuntimeError):
    """A store that lives in one process, used in a child of it."""

    engine: str
    _sentence = (
        "{engine} lives in its worker's process and this is a child of it: what is "
        "stored here would be lost; use sqlite:///jobs.db, or no isolation"
    )


class CannotHost(UsageError, RuntimeError):
    """A worker that cannot be started here, or not again."""

    call: str
    why: str
    _sentence = "{call} cannot start this worker: {why}"


class AppNotFound(UsageError, ImportError):
    """A name such as ``shop:app`` that leads to no application."""

    target: str
    why: str

    def __str__(self) -> str:
        place = f" at {self.target!r}" if self.target else ""
        return f"no application{place}: {self.why}"


class Unpicklable(UsageError, TypeError):
    """Something that belongs to its process."""

    what: str
    instead: str
    _sentence = "{what} cannot be pickled, for it belongs to this process: {instead}"


# --- stored arguments ---------------------------------------------------------------------------


class BadPayload(PenstockError):
    """Stored arguments that do not fit the task's signature."""

    task: str
    why: str
    _sentence = "{task}: the stored arguments do not fit its signature: {why}"


class NotAnObject(BadPayload):
    """A stored payload that is not a JSON object."""

    _sentence = "{task}: the stored payload is not a JSON object: {why}"


# --- one job ------------------------------------------------------------------------------------


class JobError(PenstockError):
    """Something about one job."""

    job: str


class JobFailed(JobError):
    """The job ended in the dead-letter state."""

    reason: str
    traceback: str | None = None

    def __str__(self) -> str:
        text = f"job {self.job} failed: {self.reason}"
        return f"{text}\n\n{self.traceback}" if self.traceback else text


class JobCancelled(JobError):
    """The job was cancelled, expired or superseded."""

    reason: str
    _sentence = "job {job} was cancelled: {reason}"


class JobGone(JobError, LookupError):
    """The store does not know the job: pruned, purged, or never there."""

    _sentence = (
        "job {job} is not in the store: it was pruned, purged or never enqueued here; "
        "raise keep_finished to keep results for longer"
    )


class JobUncommitted(JobGone):
    """The store does not know a job that was enqueued in a transaction of the caller's."""

    _sentence = (
        "job {job} is not in the store: the transaction it was enqueued in is still "
        "open, or was rolled back; commit it first"
    )


class ResultTimeout(JobError, TimeoutError):
    """The job was not finished in time; it goes on."""

    state: str
    timeout: float
    _sentence = (
        "job {job} is still {state} after {timeout:g} s; "
        "it goes on: wait longer, or look with `handle.status()`"
    )


class UniqueConflict(JobError):
    """A person's retry whose unique key another job has taken."""

    key: str
    owner: str
    _sentence = (
        "job {job} cannot be retried: its unique key {key!r} is taken by job "
        "{owner}; cancel that one first, or wait until it is done"
    )


class IdConflict(JobError):
    """An id under which a job of another task is known. Of several jobs that are enqueued together
    only those with such an id are not stored: ``ids`` has None for each of them, and the id of
    every other job, in order.
    """

    task: str
    owner: str
    ids: tuple[str | None, ...] = ()

    def __str__(self) -> str:
        word = self.task.rpartition(".")[2]
        return (
            f"no job of task {self.task!r} was stored under the id {self.job!r}: it belongs to a "
            f"job of task {self.owner!r}; use ids that name their task, such as "
            f"'{word}:{self.job}'"
        )


class WrongState(JobError):
    """A change that the job's state does not allow."""

    change: str
    state: str
    _sentence = "job {job} is {state}: {change} does not apply to it"


class WrongTask(JobError):
    """A job that is of another task than its handle was made for."""

    task: str
    wanted: str
    _sentence = (
        "job {job} is of the task {task}, not of {wanted}; get its handle with {task}.job(id), "
        "or with app.job(id)"
    )


# --- processes ----------------------------------------------------------------------------------


class ProcessFailed(PenstockError):
    """A worker process that ended before it could work, in its own words."""

    said: str
    _sentence = "{said}"


# --- child processes ----------------------------------------------------------------------------


class CannotIsolate(PenstockError):
    """An attempt that found no child process to run in."""

    task: str
    why: str
    _sentence = "{task} cannot run in a child process: {why}"


class MemoryExceeded(PenstockError, MemoryError):
    """An attempt that was killed because its child process used too much memory."""

    task: str
    used: int
    allowed: int

    def __str__(self) -> str:
        return (
            f"{self.task} used {self.used / 1e6:.0f} MB of max_memory {self.allowed / 1e6:.0f} MB "
            "and was killed; work in smaller pieces, or raise max_memory"
        )


# --- transactions of handlers -------------------------------------------------------------------


class NoTransaction(PenstockError, LookupError):
    """An attempt that has no transaction to write in."""

    task: str
    why: str
    _sentence = "{task} has no transaction: {why}"


class TransactionEnded(PenstockError):
    """A handler has ended the transaction in which its job was to end."""

    task: str
    _sentence = (
        "{task} has ended its transaction by itself (commit, rollback or close): its job "
        "cannot end in it any more, and what was committed stays; leave the end to the worker, "
        "and use `with connection.transaction():` for a part that may fail"
    )


class TransactionAborted(PenstockError):
    """A handler has swallowed the error of a statement, and nothing can be committed any more."""

    task: str
    _sentence = (
        "a statement of {task} failed and the error was swallowed: PostgreSQL commits "
        "nothing of such a transaction; let the error pass, or put what may fail into "
        "`with connection.transaction():`"
    )


class CommitLost(PenstockError):
    """A COMMIT whose answer did not come."""

    task: str
    is_known: bool
    """It is known that nothing was committed."""

    def __str__(self) -> str:
        what = (
            "nothing was committed"
            if self.is_known
            else "whether it was committed is not known: look at the job's state"
        )
        return f"{self.task} lost its connection at the COMMIT; {what}"


# --- the store ----------------------------------------------------------------------------------


class EngineError(PenstockError):
    """The store said no."""


class EngineUnavailable(EngineError):
    """The store cannot be reached now."""

    engine: str
    why: str
    _sentence = "{engine} cannot be reached: {why}; nothing is lost, try again"


class EngineBusy(EngineUnavailable):
    """Another process holds the store's write lock for too long."""

    _sentence = (
        "{engine} is locked by another process: {why}; "
        "try again, or look for a stopped or hung process that has it open"
    )


class EngineCrowded(EngineUnavailable):
    """There is no connection to spare."""

    _sentence = (
        "{engine} has no connection to spare: {why}; try again, raise connections "
        "in the URL or max_connections of the server, or end what keeps them"
    )


class EngineReentered(EngineUnavailable):
    """A thread came back to the store in the middle of its own call."""

    why: str = "it was interrupted there"
    _sentence = (
        "{engine} is being written by this very thread: {why}; "
        "let a signal handler or a finaliser note what to enqueue, and enqueue it afterwards"
    )


class EngineReplaced(EngineUnavailable):
    """The store that this handle opened is no longer the one at its place."""

    _sentence = (
        "{engine} is not the one that was opened: {why}; "
        "put it back, or close and open anew to use what is there now"
    )


class EngineTimeout(EngineUnavailable, TimeoutError):
    """A call to the store took longer than allowed; it may have happened."""

    _sentence = "{engine} did not answer in time: {why}; the call may have happened"


class EngineRefused(EngineError):
    """The server does not let us in; asking again does not help."""

    engine: str
    why: str
    _sentence = (
        "{engine} refuses us: {why}; "
        "correct the user, the password or the database in the URL, or let this one in"
    )


class EngineForbidden(EngineError):
    """This user may not do this in the store."""

    engine: str
    why: str
    _sentence = (
        "{engine} does not allow this: {why}; use a role that may, "
        "or let the owner of the store run SELECT penstock.allow(role, 'enqueue'), "
        "or 'work', or 'read'"
    )


class EngineUnsuitable(EngineError):
    """A server or a database that cannot hold a store."""

    engine: str
    why: str
    step: str
    """What to do about it."""

    _sentence = "{engine} cannot hold a store: {why}; {step}"


class EngineReadOnly(EngineError):
    """The store cannot be written."""

    engine: str
    why: str
    step: str = "give this user write permission on the file and its directory"
    """What to do about it."""

    _sentence = "{engine} is read-only: {why}; {step}"


class EngineFull(EngineError):
    """The store has no room left."""

    engine: str
    why: str
    _sentence = (
        "{engine} is full: {why}; nothing of this call was stored: free space, then try again"
    )


class EngineCorrupt(EngineError):
    """The store's data is damaged, or is something else altogether."""

    engine: str
    why: str
    step: str = "move it away and restore a backup, or name another file"
    """What to do about it."""

    _sentence = "{engine} is damaged or no Penstock store: {why}; {step}"


class EngineClosed(EngineError):
    """The handle was used before open or after close."""

    engine: str
    _sentence = "{engine} is not open; open it first, or do not use it after close"


class StoreMissing(EngineError, LookupError):
    """No store where one is to be looked at."""

    place: str
    why: str
    source: str
    """Where the place is named."""
    _sentence = (
        "there is no store at {place!r} ({source}): {why}; name the store with --app, --url, "
        "PENSTOCK_APP, PENSTOCK_URL or url in penstock.toml; the first job or worker creates it"
    )


class SchemaMismatch(EngineError):
    """The store was made by another version."""

    engine: str
    found: int
    wanted: int

    def __str__(self) -> str:
        step = (
            "upgrade Penstock in this process"
            if self.found > self.wanted
            else "run 'penstock migrate' as the owner of the store"
        )
        has = f"schema version {self.found}" if self.found else "no schema yet"
        return f"{self.engine} has {has}, this Penstock needs {self.wanted}; {step}"


class ItemRefused(EngineError):
    """A batch holds something that cannot be stored; nothing of it was."""

    engine: str
    why: str
    _sentence = "{engine} cannot store this: {why}; change the value"


class ItemContested(ItemRefused):
    """A batch holds a job that another transaction may be about to store; nothing of it was."""

    index: int | None = None
    """Which item of the batch it is, where the store can tell."""

    _sentence = (
        "{engine} cannot store this yet: {why}; "
        "try again when that transaction has ended, or look for one that was left open"
    )


class LeaseLost(EngineError):
    """The store no longer knows this worker."""

    worker: str
    _sentence = (
        "worker {worker} has lost its lease: its jobs belong to others now; "
        "join again under a new name"
    )
