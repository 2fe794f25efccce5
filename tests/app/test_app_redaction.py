"""A secret argument is in no error, log line or listing of its job; the handler gets it whole."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock import JobFailed, Penstock

SECRET = "correct horse battery"


@pytest.fixture
def app(tmp_path) -> Any:
    with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


def run(app: Penstock) -> None:
    app.run_worker(until_empty=True)


def test_a_secret_is_in_no_error_and_no_log_line(app, caplog):
    seen = []

    @app.task(retries=0)
    def login(user: str, password: str) -> None:
        seen.append(password)
        try:
            raise ConnectionError(f"refused {password!r}")
        except ConnectionError as error:
            raise PermissionError(f"{user} cannot log in with {password}") from error

    job = login.enqueue("ada", password=SECRET)
    with caplog.at_level(logging.DEBUG):
        run(app)

    with pytest.raises(JobFailed) as failed:
        job.result(timeout=5)
    (record,) = job.status().errors
    assert seen == [SECRET]
    assert record.message == "ada cannot log in with [redacted]"
    assert "refused '[redacted]'" in (record.traceback or "")
    formatter = logging.Formatter()
    lines = [formatter.format(each) for each in caplog.records]
    for text in (str(failed.value), str(record), *lines):
        assert SECRET not in text
    assert any("[redacted]" in line for line in lines)


def test_a_task_names_its_own_secrets_at_any_depth(app):
    @app.task(retries=0, redact=["iban"])
    def pay(order: dict[str, Any]) -> None:
        raise ValueError(f"no such account: {order['customer']['iban']}")

    job = pay.enqueue({"customer": {"iban": "DE02120300000000202051"}})
    run(app)
    assert job.status().reason == "ValueError: no such account: [redacted]"


def test_what_a_task_calls_secret_is_known_to_commands_without_its_code(app, tmp_path):
    from typer.testing import CliRunner

    from penstock.cli.program import app as program

    @app.task(redact=["iban"])
    def pay(iban: str, note: str, api_key: str) -> dict[str, str]:
        return {"iban": iban, "token": "abc", "note": note}

    job = pay.using(meta={"tenant": "acme", "token": "xyz"}).enqueue("DE02", "rent", "k")
    run(app)
    url = f"sqlite:///{tmp_path}/jobs.db"
    for how in ((), ("--json",)):
        shown = CliRunner().invoke(program, ["jobs", "show", job.id, "--url", url, *how]).stdout
        assert "rent" in shown
        assert "acme" in shown
        assert "penstock.redact" not in shown
        for secret in ("DE02", '"k"', "abc", "xyz"):
            assert secret not in shown


def test_jobs_of_another_task_do_not_inherit_what_it_hides(app):
    @app.task
    def other(iban: str) -> None: ...

    @app.task(redact=["iban"])
    def pay(iban: str) -> str:
        return other.enqueue(iban).id

    job = pay.enqueue("DE02")
    run(app)
    assert app.job(job.result()).status().meta is None
