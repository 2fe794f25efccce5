"""The recipe for Django: what its jobs do while the database is restarted below them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.pages import DOCS, blocks
from docs.reading import surroundings
from penstock import JobFailed, Penstock
from servers.postgres import Postgres

PAGE = DOCS / "how-to/django.md"
COUNT = "shop.tasks.count_in_turn"
TASK = """

@app.task(name="shop.tasks.count_in_turn", retries=0)
def count_in_turn() -> int:
    return Order.objects.count()
"""
MIDDLEWARE = re.compile(r"^@app\.middleware\n.*?(?=^@|\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture
def server() -> Iterator[Postgres]:
    server = Postgres(fsync=False)
    server.start()
    with server.connect() as connection:
        connection.execute("CREATE DATABASE shop")
    yield server
    server.close()


@pytest.fixture
def environment(server: Postgres) -> Mapping[str, str]:
    login = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
    return {**surroundings(), **login, "DJANGO_SETTINGS_MODULE": "mysite.settings"}


@pytest.fixture
def project(tmp_path: Path, environment: Mapping[str, str]) -> Path:
    """The page's files, with a task that is never retried, and the tables of its models."""
    for block in blocks(PAGE, "python"):
        if block.file_name is not None:
            file = tmp_path / block.file_name
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.body)
    with (tmp_path / "shop/tasks.py").open("a") as tasks:
        tasks.write(TASK)
    migrate = ["python", "-m", "django", "migrate", "--run-syncdb", "--verbosity", "0"]
    subprocess.run(migrate, cwd=tmp_path, env=dict(environment), check=True, timeout=60)
    return tmp_path


@contextmanager
def worker(project: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """A worker with one thread, so that each job finds the connection of the one before."""
    command = ["penstock", "worker", "mysite.worker:app", "--threads", "1", "--drain", "1s"]
    running = subprocess.Popen(command, cwd=project, env=dict(environment))
    try:
        yield
    finally:
        running.terminate()
        assert running.wait(timeout=60) == 0


def counts(url: str) -> int:
    """The result of one job that asks the database by the ORM."""
    with Penstock(url, wait_for_store="30s") as app:
        result: int = app.enqueue(COUNT).result(timeout=60)
        return result


@pytest.mark.timeout(240)
def test_no_job_fails_because_the_database_was_restarted(
    server: Postgres, project: Path, environment: Mapping[str, str]
) -> None:
    with worker(project, environment):
        assert counts(server.url("shop")) == 0
        server.restart()
        assert [counts(server.url("shop")) for _ in range(3)] == [0, 0, 0]


@pytest.mark.timeout(240)
def test_without_the_middleware_every_job_fails_after_a_restart(
    server: Postgres, project: Path, environment: Mapping[str, str]
) -> None:
    """So the recipe is needed, and the test above can fail."""
    jobs = project / "mysite/jobs.py"
    text, left_out = MIDDLEWARE.subn("", jobs.read_text())
    assert left_out == 2
    jobs.write_text(text)

    with worker(project, environment):
        assert counts(server.url("shop")) == 0
        server.restart()
        for _ in range(3):
            with pytest.raises(JobFailed, match=r"InterfaceError|OperationalError"):
                counts(server.url("shop"))


def test_a_process_that_has_set_django_up_may_import_the_jobs_at_any_time(
    project: Path, environment: Mapping[str, str]
) -> None:
    """Also from ``AppConfig.ready``, where Django cannot be set up once more."""
    (project / "shop/apps.py").write_text(
        "from django.apps import AppConfig\n\n\n"
        "class ShopConfig(AppConfig):\n"
        "    name = 'shop'\n\n"
        "    def ready(self) -> None:\n"
        "        import shop.tasks\n"
    )
    program = "import django; django.setup(); import shop.tasks; print(len(shop.tasks.app.tasks))"
    done = subprocess.run(
        ["python", "-c", program],
        cwd=project,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
