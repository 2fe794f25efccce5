"""What commands print, piece by piece: tables, times, texts, bars."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pexpect
import pytest

from penstock.cli.output import (
    Column,
    PrintedTable,
    print_block,
    print_json,
    print_wrapped,
    visible,
)
from penstock.cli.times import iso, moment, relative, rough

COLUMNS = (Column("NAME", shrink=True), Column("JOBS", align="right"), Column("NOTE"))


def test_columns_are_as_wide_as_what_is_in_them_on_a_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    PrintedTable(COLUMNS).print([("日本", "7", "x"), ("mail", "1000", "")])
    assert capsys.readouterr().out == "NAME  JOBS  NOTE\n日本     7  x\nmail  1000\n"


def test_a_table_in_pieces_has_its_titles_once_and_stays_aligned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = PrintedTable(COLUMNS)
    table.print([("a long name", "1", "x")])
    table.print([("b", "2", "y")])
    assert capsys.readouterr().out.splitlines() == [
        "NAME         JOBS  NOTE",
        "a long name     1  x",
        "b               2  y",
    ]


def test_what_cannot_be_seen_is_written_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    assert visible("a\nb\t\x1b[2J\x9b\u202e\ud800é日") == r"a\nb\t\x1b[2J\x9b\u202e\ud800é日"
    print_block("one\n\ttwo\x07\r\nthree  \n", indent=2)
    assert capsys.readouterr().out == "  one\n  \ttwo\\x07\n  three\n"


def test_json_is_ascii_where_the_output_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, text in (
        ("ascii", rb'"\u00fc"'),
        ("latin-1", b'"\xfc"'),
        ("utf-8", b'"\xc3\xbc"'),
    ):
        raw = io.BytesIO()
        out = io.TextIOWrapper(raw, encoding)
        monkeypatch.setattr(sys, "stdout", out)
        print_json({"who": "ü"})
        out.flush()
        assert raw.getvalue() == b'{\n  "who": ' + text + b"\n}\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.25, "250ms"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h")],
)
def test_a_duration_is_rough(seconds: float, text: str) -> None:
    assert rough(seconds) == text


def test_days_begin_after_two_of_them() -> None:
    assert (rough(172799), rough(172800), rough(40 * 86400)) == ("47h", "2d", "40d")


def test_instants_are_told_for_programs_and_for_people() -> None:
    assert iso(1763263211.25) == "2025-11-16T03:20:11.250000Z"
    assert iso(None) is moment(None, 0.0) is None
    assert moment(1763263211.25, 1763263511.25) == "2025-11-16 03:20:11 UTC (5m ago)"
    assert (relative(10.0, 7.0), relative(None, 0.0)) == ("in 3s", "")
    assert iso(1e300) == "9999-12-31T23:59:59.000000Z"
    assert iso(-5.0) == "1970-01-01T00:00:00.000000Z"


def test_a_bar_is_on_the_screen_and_what_is_printed_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("{}\n" * 3000)
    command = f"{sys.executable} -m penstock enqueue x - --url sqlite:///a.db <lines >ids"
    terminal = pexpect.spawn("sh", ["-c", command], cwd=str(tmp_path), timeout=60)
    terminal.expect_exact("Enqueuing")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    ids = (tmp_path / "ids").read_text()
    assert (len(set(ids.split())), ids.count("\n"), "\x1b" in ids) == (3000, 3000, False)


@pytest.mark.parametrize("width", [30, 60, 100])
def test_a_long_line_is_broken_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    text = "warning  unserved: no worker serves queue 'mail', where 12 jobs wait --queues mail"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_wrapped(text, indent=9)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert " ".join(line.strip() for line in lines).split() == text.split()


def test_a_long_line_stays_whole_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    print_wrapped("word " * 100, indent=3)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_command_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "penstock queues resume --url sqlite:////var/lib/shop/jobs.db mail"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    print_wrapped(f"   next: when the provider is back: {command}; or purge them", indent=9)
    assert f"         {command};" in capsys.readouterr().out.splitlines()
