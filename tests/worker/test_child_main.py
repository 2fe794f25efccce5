"""Isolated tasks of a main script: it is run again in the child, under another name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.worker.child.find_task import NotImportable, TaskLocation, is_child, locate
from worker import victims
from worker.process_pool_bench import PATIENCE

TESTS = Path(__file__).parent.parent

TASKS = """
import asyncio, os, sys
from penstock import Penstock

app = Penstock("memory://")

@app.task(isolation="process", retries=0)
def where() -> list[str]:
    return [__name__, sys.modules["__main__"].__name__, str(os.getpid()), *sys.argv[1:]]

@app.task(isolation="process", retries=0)
async def enqueues() -> None:
    await where.aenqueue()

@app.task(isolation="process", retries=0, name="by.another.name")
def named() -> str:
    return "named"
"""

RUN = """
if __name__ == "__main__":
    from worker.process_pool_bench import Bench

    async def main() -> None:
        bench = Bench(1)
        for task in (where, enqueues, named):
            outcome = await bench.run(task)
            print(task.spec.name, outcome.kind, (outcome.result or b"").decode(), outcome.reason)
        bench.close()

    print(os.getpid())
    asyncio.run(main())
"""


def run(*command: str, place: Path) -> list[str]:
    """What a Python process says."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_tasks_of_a_guarded_script_run_in_children(tmp_path):
    (tmp_path / "script.py").write_text(TASKS + RUN)
    pid, where, _, named = run("script.py", "an argument", place=tmp_path)

    assert where.startswith('script.where succeeded ["__mp_main__","__mp_main__",')
    assert where.endswith(',"an argument"] None')
    assert pid not in where
    assert named == 'by.another.name succeeded "named" None'


def test_the_tasks_of_a_package_that_is_run_run_in_children(tmp_path):
    package = tmp_path / "parcel"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inside.py").write_text("WORD = 'inside'\n")
    (package / "__main__.py").write_text("from .inside import WORD\n" + TASKS + RUN)
    _, where, _, named = run("-m", "parcel", place=tmp_path)

    assert where.startswith('parcel.where succeeded ["__mp_main__"')
    assert named.endswith('"named" None')


def test_a_job_that_a_child_puts_into_a_store_in_memory_is_refused_not_lost(tmp_path):
    (tmp_path / "script.py").write_text(TASKS + RUN)
    _, _, enqueues, _ = run("script.py", place=tmp_path)

    assert enqueues == (
        "script.enqueues failed  penstock.errors.WrongProcess: memory:// lives in its worker's "
        "process and this is a child of it: what is stored here would be lost; "
        "use sqlite:///jobs.db, or no isolation"
    )


@pytest.mark.parametrize(
    ("host", "call", "end"),
    [
        ("thread = app.worker_thread(leads=False).start()", "start", "thread.stop(0)"),
        ("app.run_worker(until_empty=True, leads=False)", "run_worker", "pass"),
    ],
    ids=["thread", "process"],
)
def test_a_script_that_hosts_a_worker_wherever_it_is_run_is_told_to_guard_it(
    tmp_path, host, call, end
):
    end = f"if __name__ == '__main__':\n    {end}\n"
    (tmp_path / "script.py").write_text(f"{TASKS}\n{host}\n{RUN}\n{end}")
    said = run("script.py", place=tmp_path)

    assert all(
        f"penstock.errors.CannotHost: {call} cannot start this worker: this is a child process of "
        "one, which runs this script again to find its tasks; put it under "
        "`if __name__ == '__main__':`" in line
        for line in said[1:]
    )
    assert len(said) == 4


# --- places -------------------------------------------------------------------------------------


def test_a_function_of_a_module_is_found_by_its_name():
    assert locate(victims.pid) == TaskLocation("worker.victims", "pid")


def test_what_no_other_process_can_find_says_what_to_do():
    def closure() -> None: ...

    places = [locate(closure), locate(lambda: None), locate(_Callable())]

    assert [place.why for place in places if isinstance(place, NotImportable)] == [
        "a child process cannot import it from inside another function; "
        "declare it at the top level of a module",
        "a child process cannot import a lambda; declare a function with def",
        "it has no name of its own; declare a function with def in a module",
    ]


def test_what_is_typed_in_says_what_to_do(tmp_path):
    program = (
        "from penstock.worker.child.find_task import locate\n"
        "def typed(): ...\n"
        "print(locate(typed).why)\n"
    )
    assert run("-c", program, place=tmp_path) == [
        "a child process cannot import what is typed in or given with -c; "
        "declare it in a module or a script"
    ]


def test_a_script_that_has_run_to_its_end_is_still_found(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit\n"
        "from penstock.worker.child.find_task import locate\n"
        "def task(): ...\n"
        "atexit.register(lambda: print(locate(task).script.path))\n"
    )
    assert run(str(script), place=tmp_path) == [str(script)]


def test_this_process_is_no_child():
    assert not is_child()


class _Callable:
    def __call__(self) -> None: ...
