"""Every Python block of the documents runs, in order, as a reader would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from subprocess import PIPE

import pytest

from penstock.config import Settings
from penstock.demo import _Screen

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FILE_NAME = re.compile(r"# (\w+\.py)\n")


def run(code: str, place: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        named = FILE_NAME.match(block)
        if named:
            (tmp_path / named[1]).write_text(block)
        else:
            run(block, tmp_path)


def test_the_tour_of_the_readme_really_works(tmp_path: Path) -> None:
    shop, enqueue = blocks(ROOT / "README.md")
    (tmp_path / "shop.py").write_text(shop)
    answer = run(
        f"{enqueue}\n"
        "from shop import app\n"
        "app.run_worker(until_empty=True)\n"
        "print(job.result(timeout=10), sorted((c.state.value, c.jobs) for c in app.counts()))",
        tmp_path,
    )
    assert answer.strip() == "sent to ada@example.com [('scheduled', 1), ('succeeded', 3)]"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_setting_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    for field in fields(Settings):
        assert f"| `{field.name}` | `PENSTOCK_{field.name.upper()}` |" in page


def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    answer = run("from penstock.demo import main; raise SystemExit(main([]))", tmp_path)
    assert "55 succeeded" in answer
    assert "order 4711 has no address" in answer


def test_the_tour_of_the_readme_pleases_a_type_checker(tmp_path: Path) -> None:
    shop, enqueue = blocks(ROOT / "README.md")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "enqueue.py").write_text(enqueue)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "shop.py", "enqueue.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout


def demo(*arguments: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.demo", *arguments],
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_demo_keeps_exactly_the_file_it_is_told(tmp_path: Path) -> None:
    done = demo("--keep", "50%25 #1?.db", place=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "50%25 #1?.db").exists()
    assert "mail.send        ########################  40/40" in done.stdout


def test_the_demo_says_why_it_cannot_begin(tmp_path: Path) -> None:
    done = demo("--keep", "missing/jobs.db", place=tmp_path)
    assert done.returncode == 1
    assert "there is no directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_stops_when_nobody_reads_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(100) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_demo_draws_no_line_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _Screen().show(["x" * 100])
    assert capsys.readouterr().out == "\x1b[2K" + "x" * 39 + "\n"
