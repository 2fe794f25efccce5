"""Which store a command uses, and what it says if code and environment do not agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Shell
from penstock import Penstock
from penstock.cli.program import SUMMARIES, load
from penstock.core.job import State

ROOT = Path(__file__).parent.parent.parent
YARD = """
from penstock import Penstock
app = Penstock({url})
@app.task
def send(to: str) -> str:
    return to
@app.task(isolation="process")
def apart() -> str:
    from yard import app
    send.enqueue("from a child")
    return str(app.url)
"""


@pytest.fixture
def yard(shell: Shell, tmp_path: Path) -> Path:
    (tmp_path / "yard.py").write_text(YARD.format(url='"sqlite:///code.db"'))
    for name in ("code", "other"):
        with Penstock(f"sqlite:///{tmp_path}/{name}.db") as app:
            app.enqueue("yard.send", {"to": name}, id=f"in-{name}")
    return tmp_path


def penstock(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def paths() -> list[tuple[str, ...]]:
    """Every command."""
    found: list[tuple[str, ...]] = []
    for name in SUMMARIES:
        inner = getattr(load(name), "commands", None)
        found += [(name, each) for each in inner] if inner else [(name,)]
    return found


@pytest.mark.parametrize("path", [path for path in paths() if path != ("demo",)], ids=" ".join)
def test_every_command_takes_app_and_url(path: tuple[str, ...]) -> None:
    command = load(path[0])
    for name in path[1:]:
        command = command.commands[name]
    assert {"--app", "--url"} <= {name for each in command.params for name in each.opts}


@pytest.mark.parametrize(
    "named", [("--app", "yard:app"), ("--app", "yard")], ids=["attribute", "module"]
)
def test_a_command_looks_at_the_store_of_the_application(
    shell: Shell, yard: Path, named: tuple[str, ...]
) -> None:
    shown = shell("jobs", "list", *named)
    assert (shown.code, shown.err) == (0, "")
    assert "in-code" in shown.out


def test_the_application_may_be_named_in_the_environment(shell: Shell, yard: Path) -> None:
    shown = shell("explain", "in-code", PENSTOCK_APP="yard:app")
    assert (shown.code, shown.err) == (0, "")


def test_a_url_in_the_environment_that_the_code_contradicts_is_a_warning_with_both(
    shell: Shell, yard: Path
) -> None:
    shown = shell("jobs", "list", PENSTOCK_APP="yard:app", PENSTOCK_URL="sqlite:///other.db")
    assert "in-code" in shown.out
    assert shown.err == (
        f"Warning: the code of yard:app names the store sqlite:///{yard}/code.db, and PENSTOCK_URL "
        f"names sqlite:///{yard}/other.db; sqlite:///{yard}/code.db is used.\n"
    )


def test_a_url_on_the_command_line_wins_over_the_code_and_says_so(shell: Shell, yard: Path) -> None:
    shown = shell("jobs", "list", "--app", "yard:app", "--url", "sqlite:///other.db")
    assert "in-other" in shown.out
    assert shown.err == (
        f"Warning: the code of yard:app names the store sqlite:///{yard}/code.db, and --url names "
        f"sqlite:///{yard}/other.db; sqlite:///{yard}/other.db is used.\n"
    )


def test_the_same_file_by_another_name_is_no_difference(shell: Shell, yard: Path) -> None:
    same = f"sqlite:///{yard}/../{yard.name}/code.db"
    shown = shell("jobs", "list", "--app", "yard:app", "--url", same, PENSTOCK_URL=same)
    assert (shown.code, shown.err) == (0, "")


def test_with_a_url_alone_no_code_is_loaded(shell: Shell, yard: Path) -> None:
    shown = shell("jobs", "list", "--url", "sqlite:///other.db", PENSTOCK_APP="nowhere:app")
    assert (shown.code, shown.err) == (0, "")


def test_an_application_without_a_url_uses_that_of_the_environment(
    shell: Shell, yard: Path
) -> None:
    (yard / "plain.py").write_text(YARD.format(url=""))
    shown = shell("jobs", "list", "--app", "plain", PENSTOCK_URL="sqlite:///other.db")
    assert "in-other" in shown.out
    assert shown.err == ""


def test_a_store_that_the_code_names_and_that_is_missing_is_said_so(
    shell: Shell, yard: Path
) -> None:
    (yard / "code.db").unlink()
    missing = shell("jobs", "list", "--app", "yard:app")
    assert f"no store at '{yard}/code.db' (from the code of yard:app)" in missing.err


def test_enqueue_checks_with_the_code_and_stores_where_url_says(shell: Shell, yard: Path) -> None:
    both = ("--app", "yard:app", "--url", "sqlite:///other.db")
    assert shell("enqueue", "yard.send", "to=ada", "--id", "new", *both).code == 0
    assert shell("enqueue", "yard.sned", *both).code == 2
    assert shell("jobs", "show", "new", "--url", "sqlite:///other.db").code == 0
    assert shell("jobs", "show", "new", "--url", "sqlite:///code.db").code == 1


def test_a_worker_serves_the_store_that_url_names_with_its_children(yard: Path) -> None:
    with Penstock(f"sqlite:///{yard}/other.db") as other:
        id = other.enqueue("yard.apart", {}).id
        done = penstock(yard, "worker", "yard:app", "--url", "sqlite:///other.db", "--until-empty")
        assert done.returncode == 0, done.stderr
        assert other.job(id).status().result == f"sqlite:///{yard}/other.db"
        assert other.count(task="yard.send", state=State.SUCCEEDED) == 2
    warning = f"the code of yard:app names the store sqlite:///{yard}/code.db, and --url names"
    assert done.stderr.count(warning) == 1
    with Penstock(f"sqlite:///{yard}/code.db") as code:
        assert code.job("in-code").status().state is State.READY


def test_a_worker_warns_of_a_url_in_the_environment_that_its_code_contradicts(yard: Path) -> None:
    done = penstock(
        yard, "worker", "--app", "yard:app", "--until-empty", PENSTOCK_URL="sqlite:///other.db"
    )
    assert done.returncode == 0, done.stderr
    assert "and PENSTOCK_URL names" in done.stderr
    with Penstock(f"sqlite:///{yard}/code.db") as code:
        assert code.job("in-code").status().state is State.SUCCEEDED


def test_a_worker_on_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "yard.py").write_text(YARD.format(url='"memory://"'))
    done = penstock(tmp_path, "worker", "yard:app")
    assert done.returncode == 2
    assert "a separate worker would never see a job; use sqlite:///jobs.db" in done.stderr
    assert "app.worker_thread()" in done.stderr
    assert "ready" not in done.stderr


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://localhost/1"])
def test_an_engine_that_is_not_there_yet_is_named_with_those_that_are(
    shell: Shell, url: str
) -> None:
    refused = shell("jobs", "list", "--url", url)
    assert refused.code == 2
    assert refused.err == (
        "Error: this version of Penstock has no engine for redis:// yet; use one of memory://, "
        "sqlite:///, postgresql://\n"
    )


def test_the_commands_of_the_readme_work_on_its_application(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    (block,) = (
        each for each in re.findall(r"```python\n(.*?)```", page, re.S) if each.startswith("# shop")
    )
    (tmp_path / "shop.py").write_text(block)
    exported = re.findall(r"^\$ export (\w+)=(\S+)$", page, re.M)
    environment = dict(exported)
    assert environment == {"PENSTOCK_APP": "shop:app"}
    stored = penstock(tmp_path, "enqueue", "shop.send", "to=ada", "--id", "JOB", **environment)
    assert stored.returncode == 0, stored.stderr
    named = set(re.findall(r"`(penstock (?:explain JOB|top|doctor|worker[^`]*))`", page))
    assert {"penstock explain JOB", "penstock top", "penstock doctor"} < named
    for command in sorted(named):
        more = ("--until-empty",) if "worker" in command else ()
        done = penstock(tmp_path, *command.split()[1:], *more, **environment)
        assert done.returncode in ((0, 1) if "doctor" in command else (0,)), done.stderr
        assert "no store" not in done.stdout + done.stderr
    assert (tmp_path / "jobs.db").exists()
