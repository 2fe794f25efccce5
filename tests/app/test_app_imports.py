"""A project of several modules: what a worker imports, and which queue a task goes to."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Penstock
from penstock.errors import AppNotFound, BadOption
from penstock.find_app import find_app
from penstock.imports import modules

SOURCES = Path(penstock.__file__).parent.parent
TASK = "from yard.jobs import app\n\n\n@app.task\ndef run() -> str:\n    return __name__\n"


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with two packages that have tasks, and one that has none."""
    files = {
        "yard/__init__.py": "",
        "yard/jobs.py": (
            "from penstock import Penstock\n"
            'app = Penstock("sqlite:///jobs.db", imports=["yard.*.tasks"])\n'
        ),
        "yard/mail/__init__.py": "",
        "yard/mail/tasks.py": TASK,
        "yard/orders/tasks.py": TASK,  # a package without __init__.py
        "yard/static/logo.txt": "",
        "extra.py": TASK,
        "broken.py": "import nowhere_to_be_found\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("yard", "extra", "broken"):
            del sys.modules[name]


def test_a_pattern_stands_for_the_modules_of_packages(yard):
    assert modules("yard.*.tasks") == ["yard.mail.tasks", "yard.orders.tasks"]
    assert modules("yard.mail.t*") == ["yard.mail.tasks"]
    assert modules("yard.jobs") == ["yard.jobs"]


@pytest.mark.parametrize("name", ["yard.nothing", "nothing", "yard.*.nothing", "yard.jobs.deeper"])
def test_a_module_that_is_not_there_is_an_error_that_names_it(yard, name):
    with pytest.raises(BadOption) as refused:
        modules(name)
    assert str(refused.value) == (
        f"imports={name!r}: there is no such module; looked in {os.getcwd()} and on sys.path"
    )


@pytest.mark.parametrize("value", ["a b", "*.tasks", ["mail", 3], {"a": 1}, "mail/tasks.py", ""])
def test_what_is_no_module_is_refused_when_the_app_is_made(value):
    with pytest.raises(BadOption, match="imports"):
        Penstock("memory://", imports=value)


def test_making_an_app_imports_nothing_and_finding_it_imports_its_tasks(yard):
    importlib.import_module("yard.jobs")
    assert "yard.mail.tasks" not in sys.modules
    app = find_app("yard.jobs:app", imports=["extra"])
    assert set(app.tasks) == {"yard.mail.tasks.run", "yard.orders.tasks.run", "extra.run"}


def test_a_worker_in_a_program_imports_them_too(yard):
    app = importlib.import_module("yard.jobs").app
    with app:
        job = app.enqueue("yard.orders.tasks.run")
        app.run_worker(until_empty=True)
        assert job.result(timeout=5) == "yard.orders.tasks"


def test_a_module_that_cannot_be_imported_says_where_it_broke(yard):
    with pytest.raises(AppNotFound) as refused:
        find_app("yard.jobs:app", imports=["broken"])
    text = str(refused.value)
    assert "importing the modules of its tasks failed; correct this first:" in text
    assert 'broken.py", line 1' in text
    assert "penstock/imports.py" not in text


def test_the_worker_command_imports_what_it_is_told(yard):
    command = [sys.executable, "-m", "penstock", "worker", "yard.jobs:app", "--import", "extra"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [*command, "--until-empty"],
        cwd=yard,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "penstock worker ready processes=1 queues=default tasks=3" in done.stderr


def test_an_isolated_task_of_a_router_runs_in_a_child(yard):
    (yard / "lone.py").write_text(
        "import os\nfrom penstock import Router\nrouter = Router()\n\n\n"
        '@router.task(isolation="process")\ndef pid() -> int:\n    return os.getpid()\n'
    )
    (yard / "house.py").write_text(
        "import lone\nfrom penstock import Penstock\n"
        'app = Penstock("sqlite:///jobs.db")\napp.include(lone.router)\n'
    )
    house = importlib.import_module("house")
    try:
        with house.app as app:
            job = importlib.import_module("lone").pid.enqueue()
            app.run_worker(until_empty=True)
            assert job.result(timeout=5) != os.getpid()
    finally:
        for name in ("lone", "house"):
            sys.modules.pop(name, None)


# --- routes -------------------------------------------------------------------------------------


def test_a_task_goes_to_the_queue_of_the_first_pattern_that_fits():
    app = Penstock("memory://", routes={"mail.bulk.*": "bulk", "mail.*": "mail"})

    def declared(name: str, queue: str | None = None) -> str:
        return app.task(name=name, queue=queue)(lambda: None).options.queue

    assert declared("mail.bulk.send") == "bulk"
    assert declared("mail.send") == "mail"
    assert declared("email.send") == "default"
    assert declared("mail.urgent", queue="urgent") == "urgent"
    urgent = app.tasks["mail.send"].using(queue="urgent")
    assert urgent.options.queue == "urgent"


def test_a_task_that_is_known_by_name_only_is_routed_too():
    with Penstock("memory://", routes={"mail.*": "mail"}) as app:
        assert app.enqueue("mail.send").status().queue == "mail"
        assert app.enqueue("other").status().queue == "default"
        assert app.enqueue("mail.send", queue="own").status().queue == "own"


def test_routes_and_imports_can_stand_in_the_environment(monkeypatch):
    monkeypatch.setenv("PENSTOCK_ROUTES", "mail.*=mail, *.report=reports")
    monkeypatch.setenv("PENSTOCK_IMPORTS", "mail.tasks, shop.*.tasks")
    settings = Penstock("memory://").settings
    assert settings.routes == {"mail.*": "mail", "*.report": "reports"}
    assert settings.imports == ("mail.tasks", "shop.*.tasks")


@pytest.mark.parametrize("routes", ["mail", {"": "mail"}, {"mail.*": ""}, {"mail.*": 3}, 5])
def test_what_is_no_route_is_refused(routes):
    with pytest.raises(BadOption, match="routes"):
        Penstock("memory://", routes=routes)
