"""Declaring tasks: what becomes of a function, and which functions cannot be one."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import subprocess
import sys

import pytest

from penstock import AsyncTask, Context, Penstock
from penstock.core.retry import Exponential, Fixed, Never
from penstock.errors import BadDuration, BadOption, BadPolicy, BadPriority, BadTask, DuplicateTask


def test_a_task_can_still_be_called_as_the_function_it_was(memory):
    @memory.task
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    assert double(21) == 42
    assert double.__doc__ == "Twice as much."
    assert double.__name__ == "double"
    assert list(inspect.signature(double).parameters) == ["number"]
    assert repr(double) == f"<Task {double.name}>"


async def test_an_async_task_can_still_be_awaited_as_the_function_it_was(memory):
    @memory.task(queue="numbers")
    async def double(number: int) -> int:
        return 2 * number

    assert await double(21) == 42
    assert repr(double) == f"<AsyncTask {double.name}>"


def test_a_task_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(answer)) is answer
    assert pickle.loads(pickle.dumps(answer.enqueue)).__self__ is answer


def test_a_task_is_named_after_its_module_and_function(memory):
    assert memory.task(_module_level).name == "test_app_tasks._module_level"


def test_a_task_can_have_a_name_of_its_own(memory):
    task = memory.task(name="mail.send")(_module_level)
    assert task.name == "mail.send"
    assert memory.tasks["mail.send"] is task


def test_a_script_names_its_tasks_after_its_file(tmp_path):
    script = tmp_path / "mailer.py"
    script.write_text(
        "from penstock import Penstock\n"
        "app = Penstock('memory://')\n"
        "@app.task\n"
        "def send(): ...\n"
        "print(send.name)\n"
    )
    assert _run(str(script)) == "mailer.send"


def test_a_module_run_with_m_names_its_tasks_as_importers_do(tmp_path):
    (tmp_path / "office").mkdir()
    source = (
        "from penstock import Penstock\n"
        "app = Penstock('memory://')\n"
        "@app.task\n"
        "def send(): ...\n"
        "print(send.name)\n"
    )
    (tmp_path / "office" / "mail.py").write_text(source)
    (tmp_path / "office" / "__main__.py").write_text(source)
    assert _run("-m", "office.mail", cwd=tmp_path) == "office.mail.send"
    assert _run("-m", "office", cwd=tmp_path) == "office.send"


def test_options_of_the_task_are_what_the_worker_sees(memory):
    @memory.task(name="a", retries=5, timeout="1m30s")
    async def first() -> None: ...

    @memory.task(name="b", retries=Fixed("5s"), at_most_once=False)
    def second() -> None: ...

    @memory.task(name="c", at_most_once=True)
    def third() -> None: ...

    assert (first.spec.policy, first.spec.timeout) == (Exponential(5), 90.0)
    assert (first.spec.is_async, second.spec.is_async) == (True, False)
    assert (second.spec.policy, second.spec.timeout) == (Fixed("5s"), None)
    assert (third.spec.policy, third.spec.at_most_once) == (Never(), True)
    assert first.spec.max_result == 1 << 20


def test_a_task_can_be_watched_and_run_apart(memory):
    task = memory.task(stall="5m", isolation="process", max_memory="2GiB")(_module_level)

    spec = task.spec
    assert (spec.stall, spec.isolation, spec.max_memory) == (300.0, "process", 2 << 30)
    assert spec.kind == "process"


def test_what_a_child_process_could_never_import_cannot_run_in_one(memory):
    def inner() -> None: ...

    for function in (inner, lambda: None):
        with pytest.raises(BadTask) as caught:
            memory.task(name="inner", isolation="process")(function)
        assert str(caught.value) == (
            f"inner cannot be a task: a child process could not import {function.__qualname__}; "
            "with isolation='process', declare a function at the top of its module"
        )


def test_without_options_a_task_is_retried_three_times(memory):
    assert memory.task(_module_level).spec.policy == Exponential(10)


def test_a_name_belongs_to_one_function(memory):
    memory.task(name="mail.send")(_module_level)
    with pytest.raises(DuplicateTask) as caught:
        memory.task(name="mail.send")(_other_function)
    line = _module_level.__code__.co_firstlineno
    assert str(caught.value) == (
        f"task 'mail.send' is already declared by test_app_tasks._module_level "
        f"({__file__}:{line}); give test_app_tasks._other_function "
        f"({__file__}:{_other_function.__code__.co_firstlineno}) its own name with "
        "@app.task(name=...)"
    )


def test_a_function_made_twice_inside_another_needs_names(memory):
    def made():
        @memory.task
        def work() -> None: ...

    made()
    with pytest.raises(DuplicateTask):
        made()


def test_two_functions_of_one_name_in_one_module_are_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "twice_declared.py").write_text(
        "from penstock import Penstock\n"
        "app = Penstock('memory://')\n"
        "@app.task\n"
        "def send(): ...\n"
        "@app.task\n"
        "def send(): ...\n"
    )
    with pytest.raises(DuplicateTask):
        importlib.import_module("twice_declared")


def test_a_module_that_is_reloaded_declares_its_tasks_anew(memory, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Penstock, "for_reload", memory, raising=False)
    file = tmp_path / "reloaded_tasks.py"
    source = "from penstock import Penstock\n@Penstock.for_reload.task\ndef answer(): return {}\n"
    file.write_text(source.format(1))
    module = importlib.import_module("reloaded_tasks")
    file.write_text("\n" + source.format(42))
    importlib.reload(module)
    assert memory.tasks["reloaded_tasks.answer"]() == 42


def test_cells_of_a_notebook_may_declare_a_task_again():
    source = (
        "from penstock import Penstock\n"
        "app = Penstock('memory://')\n"
        "for answer in (1, 42):\n"
        "    exec('@app.task\\ndef work(): return answer')\n"
        "print(work.name, app.tasks['__main__.work']())\n"
    )
    assert _run("-c", source) == "__main__.work 42"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (int, "<class 'int'> is not a function; decorate a def or an async def"),
        ("text", "'text' is not a function; decorate a def or an async def"),
        (lambda: (yield), "it yields; a task returns its result once"),
    ],
)
def test_what_is_no_function_cannot_be_a_task(memory, function, why):
    with pytest.raises(BadTask) as caught:
        memory.task(name="odd")(function)
    assert str(caught.value) == f"odd cannot be a task: {why}"


def test_an_async_generator_cannot_be_a_task(memory):
    async def stream():
        yield 1

    with pytest.raises(BadTask, match="it yields; a task returns its result once"):
        memory.task(stream)


def test_a_method_cannot_be_a_task(memory):
    with pytest.raises(BadTask, match="it is a method of Mailer; declare a function that calls it"):

        class Mailer:
            @memory.task
            def send(self) -> None: ...


def test_what_has_no_name_needs_one(memory):
    class Callable:
        def __call__(self) -> None: ...

    for nameless in (Callable(), lambda: None):
        with pytest.raises(BadTask, match="it has no name of its own; give one with name="):
            memory.task(nameless)


def test_a_name_in_the_place_of_the_function_is_told_where_it_belongs(memory):
    with pytest.raises(BadTask) as caught:
        memory.task("mail.send")
    assert str(caught.value) == (
        "'mail.send' cannot be a task: it is text; the decorator takes a name as "
        "@app.task(name='mail.send')"
    )
    with pytest.raises(BadTask, match="5 cannot be a task: it is not a function; decorate a def"):
        memory.task(5)


def test_an_object_that_is_called_as_a_coroutine_is_an_async_task(memory):
    class Doubler:
        async def __call__(self, number: int) -> int:
            return 2 * number

    task = memory.task(name="double")(Doubler())
    job = task.enqueue(21)
    with memory.worker_thread() as worker:
        worker.stop_when_empty()
    assert task.spec.is_async
    assert job.result(timeout=10) == 42


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"retrys": 3},
            BadOption,
            "retrys=3: no such option of a task; there are name, queue, priority, delay, "
            "expires_in, key, unique, unique_scope, unique_until, unique_for, at_most_once, tags, "
            "keep, keep_failed, keep_result, retries, retry_for, timeout, stall, isolation, "
            "max_memory",
        ),
        (
            {"ordered": True},
            BadOption,
            "ordered=True: it belongs to a queue; say app.set_queue(..., ordered=...)",
        ),
        ({"name": ""}, BadOption, "name='': it is empty; give at least one character"),
        ({"queue": 7}, BadOption, "queue=7: give text, not int"),
        ({"priority": "urgent"}, BadPriority, "unknown priority 'urgent'; use one of high,"),
        ({"timeout": 0}, BadDuration, "0 is not a duration: timeout is 0: no attempt could ever"),
        ({"timeout": "soon"}, BadDuration, "'soon' is not a duration: timeout has no number at"),
        ({"stall": 0}, BadDuration, "0 is not a duration: stall is 0: no attempt could ever"),
        ({"isolation": "thread"}, BadOption, "isolation='thread': give 'process', or leave it"),
        (
            {"max_memory": "512MB"},
            BadOption,
            "max_memory='512MB': it limits a child process; give isolation='process' too",
        ),
        (
            {"max_memory": 512, "isolation": "process"},
            BadOption,
            "max_memory=512: Python itself needs more; give 32MiB at least",
        ),
        (
            {"max_memory": "much", "isolation": "process"},
            BadOption,
            "max_memory='much': give bytes, or text such as '512MB' or '2GiB'",
        ),
        ({"retries": -1}, BadPolicy, "-1 is not a retry policy: retries must not be negative"),
        (
            {"retries": 2, "at_most_once": True},
            BadOption,
            "retries=2: a task that runs at most once is never tried again; leave one of the two",
        ),
        ({"unique_for": "1h"}, BadOption, "unique_for='1h': it says nothing without unique=..."),
        ({"unique_scope": "app"}, BadOption, "unique_scope='app': it says nothing without unique"),
        ({"keep": "long"}, BadDuration, "'long' is not a duration: keep has no number at"),
        (
            {"keep_failed": 2e10},
            BadDuration,
            "20000000000.0 is not a duration: keep_failed is more th",
        ),
        ({"keep_result": "no"}, BadOption, "keep_result='no': give True or False"),
        (
            {"retry_for": "ever"},
            BadDuration,
            "'ever' is not a duration: retry_for has no number at",
        ),
        (
            {"retry_for": "1d", "retries": 0},
            BadOption,
            "retry_for='1d': retries=0 never tries again; leave one of the two out",
        ),
        (
            {"retry_for": "1d", "at_most_once": True},
            BadOption,
            "retry_for='1d': a task that runs at most once is never tried again; leave one of",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_says_why(memory, options, kind, message):
    with pytest.raises(kind) as caught:
        memory.task(**options)(_module_level)
    assert str(caught.value).startswith(message)
    assert "test_app_tasks._module_level" not in memory.tasks


def test_a_context_is_no_argument_of_the_caller(memory):
    @memory.task
    def resize(album: str, ctx: Context) -> str:
        return album

    handle = resize.enqueue("holiday")  # type: ignore[call-arg]
    assert handle.status().arguments == {"album": "holiday"}


APP = Penstock("memory://")


@APP.task
def answer() -> int:
    return 42


def _module_level() -> None: ...


def _other_function() -> None: ...


def _run(*arguments: str, cwd=None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_async_task_of_one_app_is_one_of_another_too(memory):
    async def double(number: int) -> int:
        return 2 * number

    with Penstock("memory://") as other:
        task = memory.task(other.task(double))
    assert isinstance(task, AsyncTask)
    assert asyncio.run(task(21)) == 42


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "send_with_options", "defer"])
def test_what_tasks_of_other_libraries_have_leads_to_what_these_have(memory, name):
    task = memory.task(name="mail.send")(_module_level)
    for sender in (task, task.using(queue="mail")):
        with pytest.raises(AttributeError) as refused:
            getattr(sender, name)
        assert f"task 'mail.send' has no {name!r}; call .enqueue(...)" in str(refused.value)
    with pytest.raises(AttributeError, match="object has no attribute 'nonsense'"):
        _ = task.nonsense
