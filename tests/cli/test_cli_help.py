"""What the command says of itself, and what a shell completes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pexpect
import pytest

from cli.conftest import Shell
from penstock.cli.program import SUMMARIES, app, load
from penstock.config import Settings

ROOT = Path(__file__).parent.parent.parent
GROUPS = {
    "jobs": ("list", "show", "retry", "cancel", "purge", "edit", "run-now"),
    "queues": ("list", "pause", "resume", "set"),
    "tasks": ("list",),
    "workers": ("list", "drain"),
}
PATHS = [(name,) for name in SUMMARIES] + [
    (name, each) for name, commands in GROUPS.items() for each in commands
]


def test_alone_it_shows_the_help(shell: Shell) -> None:
    alone, asked = shell(), shell("--help")
    assert (alone.code, alone.err) == (asked.code, asked.err) == (0, "")
    assert alone.out.strip() == asked.out.strip()
    for name, summary in SUMMARIES.items():
        assert f"  {name:<7}  {summary}\n" in asked.out


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_shows_its_commands(shell: Shell, group: str) -> None:
    alone = shell(group)
    assert (alone.code, alone.err) == (0, "")
    listed = alone.out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(GROUPS[group])
    assert not any(line.endswith("...") for line in listed)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_help(shell: Shell, path: tuple[str, ...]) -> None:
    told = shell(*path, "--help")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith(f"Usage: penstock {' '.join(path)} ")


@pytest.mark.parametrize(
    "path", [path for path in PATHS if path not in {(name,) for name in GROUPS}]
)
def test_every_command_has_an_example(shell: Shell, path: tuple[str, ...]) -> None:
    told = " ".join(shell(*path, "--help").out.split())
    assert f"Example: penstock {' '.join(path)}" in told


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_is_a_sentence_about_a_command_that_is_there(name: str) -> None:
    assert load(name).name == name
    assert SUMMARIES[name].endswith(".")
    if name in GROUPS:
        assert import_module(f"penstock.cli.{name}").app.info.help == SUMMARIES[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("job",), "No such command 'job'. Did you mean 'jobs'?"),
        (("jobs", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("jobs", "list", "--stat", "x"), "No such option: --stat"),
        (("jobs", "list", "--limit", "0"), "Invalid value for '--limit'"),
        (("jobs", "show"), "Missing argument 'ID'."),
        (("--colour",), "No such option: --colour"),
    ],
)
def test_a_wrong_word_is_refused_and_the_right_one_suggested(
    shell: Shell, arguments: tuple[str, ...], message: str
) -> None:
    refused = shell(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert f"Error: {message}" in refused.err
    assert "Usage: penstock" in refused.err


def test_an_option_that_is_nearly_right_is_suggested(shell: Shell) -> None:
    assert "--state" in shell("jobs", "list", "--stat", "x").err.partition("Error:")[2]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_option_is_in_the_reference(path: tuple[str, ...]) -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    command = load(path[0])
    for name in path[1:]:
        command = command.commands[name]
    options = {name for each in command.params for name in each.opts if name.startswith("--")}
    assert {name for name in options if f"`{name}" not in page} == set()


def test_the_version_is_said(shell: Shell) -> None:
    told = shell("--version")
    assert (told.code, told.out.split()[0]) == (0, "penstock")


def test_as_a_module_it_is_the_same_command(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("penstock")
    answers = [
        subprocess.run([*command, "job"], cwd=tmp_path, capture_output=True, timeout=100)
        for command in ([str(script)], [sys.executable, "-m", "penstock"])
    ]
    assert answers[0].returncode == answers[1].returncode == 2
    assert answers[0].stderr == answers[1].stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_waits_for_no_command(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from penstock.cli.program import run\n"
        f"run({arguments!r})\n"
        "heavy = {'asyncio', 'rich', 'sqlite3', 'penstock.app', 'penstock.worker'}\n"
        "print('loaded', sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded []"


# --- completion ---------------------------------------------------------------------------------


def completed(shell: Shell, line: str, **environment: str) -> list[str]:
    """What is offered for the last word of a line, as bash cuts it: also at colons."""
    words = re.sub(r"(?<=\w):", " : ", line).split(" ")
    asked = shell(
        _PENSTOCK_COMPLETE="complete_bash",
        COMP_WORDS="\n".join(words),
        COMP_CWORD=str(len(words) - 1),
        **environment,
    )
    assert (asked.code, asked.err) == (0, "")
    return asked.out.split()


def test_a_shell_completes_commands_states_queues_and_tasks(store: Shell) -> None:
    store("enqueue", "shop.charge", "--queue", "mail")
    none = {"PENSTOCK_URL": ""}
    assert completed(store, "penstock jo") == ["jobs"]
    assert completed(store, "penstock jobs list --state s", **none) == ["scheduled", "succeeded"]
    assert completed(store, "penstock jobs list --hold mo", **none) == ["moving"]
    assert completed(store, "penstock queues pause ") == ["default", "mail"]
    assert completed(store, "penstock jobs list --task shop.c") == ["shop.charge"]
    named = "penstock jobs list --url sqlite:///jobs.db --queue m"
    assert completed(store, named, **none) == ["mail"]
    assert completed(store, named.replace("--url ", "--url = "), **none) == ["mail"]


def test_completion_makes_no_store_and_says_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database" * 100)
    for url in ("sqlite:///none.db", "sqlite:///text.db", "memory://", "nonsense"):
        assert completed(shell, "penstock queues pause ", PENSTOCK_URL=url) == []
        assert completed(shell, f"penstock jobs list --url {url} --queue ") == []
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_a_line_that_is_typed(store: Shell, tmp_path: Path) -> None:
    script = store("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    (tmp_path / "completion.bash").write_text(script.out)
    folder = Path(sys.executable).parent
    bash: pexpect.spawn[str] = pexpect.spawn(
        *("bash", ["--norc", "--noprofile", "-i"]),
        cwd=str(tmp_path),
        env={**os.environ, "PS1": "ready> ", "TERM": "dumb", "PATH": f"{folder}:/usr/bin:/bin"},
        dimensions=(24, 120),
        encoding="utf-8",
        timeout=60,
    )
    bash.expect_exact("ready> ")
    bash.sendline(". ./completion.bash")
    bash.expect_exact("ready> ")
    for typed, rest in (
        ("penstock jobs list --sta", "te "),
        ("succ", "eeded "),
        ("--url sqlite:///jobs.db --queue def", "ault "),
    ):
        bash.send(f"{typed}\t")
        bash.expect_exact(f"{typed}{rest}")
    bash.close(force=True)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_completion_script_can_be_shown(shell: Shell, name: str) -> None:
    done = shell("--show-completion", name, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.code == 0, done.err
    assert "_PENSTOCK_COMPLETE" in done.out


def test_completion_is_offered() -> None:
    assert app._add_completion


# --- defaults -----------------------------------------------------------------------------------

FILTERS = {
    *("--state", "--queue", "--task", "--key", "--hold", "--tag", "--correlation-id"),
    *("--since", "--until", "--priority", "--run-at", "--delay", "--max-running", "--weight"),
}
"""Options without which nothing is filtered, or nothing is changed."""


@pytest.mark.parametrize(
    "path", [path for path in PATHS if path not in {(name,) for name in GROUPS}], ids=" ".join
)
def test_every_option_that_takes_a_value_says_its_default(path: tuple[str, ...]) -> None:
    command = load(path[0])
    for name in path[1:]:
        command = command.commands[name]
    options = [each for each in command.params if each.opts[0].startswith("--")]
    silent = {
        each.opts[0]
        for each in options
        if not each.is_flag and each.default is None and "[default: " not in each.help
    }
    assert silent <= (FILTERS if path[0] != "enqueue" else set())


def test_the_defaults_of_a_worker_are_those_of_the_settings(shell: Shell) -> None:
    told = " ".join(shell("worker", "--help").out.split())
    settings = Settings()
    for name in ("concurrency", "threads", "children"):
        assert re.search(rf"--{name} N [^\[]*\[default: {getattr(settings, name)}\]", told)
    for name in ("drain", "grace", "lease"):
        assert re.search(
            rf"--{name} DURATION [^\[]*\[default: {getattr(settings, name):g}s\]", told
        )
    assert re.search(rf"--stall-limit DURATION [^\[]*\[default: {settings.stall_limit:g}s\]", told)
