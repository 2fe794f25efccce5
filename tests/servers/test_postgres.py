"""The server of the tests: it keeps what it must, and nothing of it outlives who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from servers.emptied import Emptied
from servers.postgres import Postgres
from servers.programs import Program, ServerMissing
from servers.ward import PATIENCE, ServerTrouble, Ward

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(fsync=False) as server:
        yield server


@pytest.fixture
def ward() -> Iterator[Ward]:
    with Ward() as ward:
        yield ward


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def written(server: Postgres) -> str:
    """Commit a row in a new database; return the database."""
    database = server.new_database()
    with server.connect(database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
    return database


def is_kept(server: Postgres, database: str) -> bool:
    with server.connect(database) as connection:
        return connection.execute("SELECT number FROM kept").fetchall() == [(1,)]


def test_what_was_committed_is_there_after_a_kill(server: Postgres) -> None:
    database = written(server)
    server.kill()
    server.start()
    assert is_kept(server, database)
    assert "was not properly shut down" in server.log()


def test_a_kill_ends_every_process_of_the_server(server: Postgres) -> None:
    with closing(server.connect()) as connection:
        backends = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
        assert len(backends) > 1
        server.kill()
        until(lambda: not any(is_alive(pid) for (pid,) in backends))
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        server.connect()
    server.start()


def test_a_restart_keeps_data_and_address(server: Postgres) -> None:
    database, before = written(server), server.url()
    server.restart()
    assert is_kept(server, database)
    assert server.url() == before


def test_a_setting_holds_from_the_next_start(server: Postgres) -> None:
    server.configure(work_mem="5MB")
    server.restart()
    with server.connect() as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)


def test_the_server_of_fault_tests_writes_to_disk() -> None:
    with Postgres() as server, server.connect() as connection:
        shown = [
            connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "full_page_writes")
        ]
        assert shown == [("on",), ("on",)]


def test_a_database_goes_with_its_test(server: Postgres) -> None:
    with server.database() as url:
        connection = psycopg.connect(url)
    with closing(connection), pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_an_empty_database_has_no_schema_of_ours(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('penstock')").fetchone() == (None,)


def test_a_server_that_does_not_start_says_why() -> None:
    server = Postgres(fsync=False, shared_buffers="plenty")
    with pytest.raises(ServerTrouble, match="PostgreSQL ended at once") as caught:
        with server:
            pass
    assert """invalid value for parameter "shared_buffers": "plenty""" in str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_test_process_that_was_killed(number: signal.Signals) -> None:
    """Nor when a fork of it goes on, with everything it had open."""
    script = """
import os, sys
from servers.postgres import Postgres
server = Postgres(fsync=False)
server.start()
fork = os.fork()
if fork:
    print(fork, server.pid, server._ward.folder, flush=True)
sys.stdin.read()
os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    # Both end with their input, whatever becomes of this test.
    with process:
        assert process.stdout
        fork, postmaster, folder = process.stdout.readline().split()
        assert is_alive(int(postmaster))
        process.send_signal(number)
        until(lambda: not is_alive(int(postmaster)) and not os.path.exists(folder))
        assert is_alive(int(fork))


def test_a_ward_ends_only_when_the_last_of_its_processes_is_gone(ward: Ward) -> None:
    fifo = ward.folder / "fifo"
    os.mkfifo(fifo)
    ward.start("sh", "-c", f"(read line < {fifo}) & exit 3")
    assert not ward.has_ended()
    fifo.write_text("go\n")
    assert ward.ended() == 3


def test_a_closed_ward_leaves_no_folder() -> None:
    with Ward() as ward:
        ward.start("sleep", "600")
        pid = ward.pid
    assert not ward.folder.exists()
    assert pid is not None
    assert not is_alive(pid)


def test_a_missing_program_says_what_to_install() -> None:
    with pytest.raises(ServerMissing) as caught:
        Program("no-such-server", "no-such-package").must()
    assert str(caught.value) == (
        "the tests need the program 'no-such-server', which is not on this machine; "
        "run 'make servers', or 'sudo apt-get install no-such-package'"
    )


def test_a_program_is_found_off_the_path_the_newest_first(tmp_path: Path) -> None:
    for version in ("9", "14", "15"):
        program = tmp_path / version / "bin" / "no-such-server"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    (tmp_path / "15" / "bin" / "no-such-server").chmod(0o644)
    pattern = f"{tmp_path.relative_to('/')}/*/bin"
    found = Program("no-such-server", "package", (pattern,)).path()
    # Root may run what nobody has marked as a program only if somebody may.
    assert found == str(tmp_path / "14" / "bin" / "no-such-server")


def test_a_store_is_emptied_and_who_stayed_connected_is_told() -> None:
    with closing(Emptied()) as database:
        database.empty()  # nothing there yet
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA penstock")
            connection.execute("CREATE SEQUENCE penstock.ticket")
            connection.execute(
                "CREATE TABLE penstock.job AS SELECT nextval('penstock.ticket') AS seq"
            )
            connection.execute("CREATE TABLE penstock.migration AS SELECT 1 AS version")
            connection.execute("CREATE TABLE penstock.cell AS SELECT 'c' AS name")
        database.empty()
        with psycopg.connect(database.url, application_name="penstock-test") as connection:
            tables = ("job", "migration", "cell")
            rows = [
                connection.execute(f"SELECT * FROM penstock.{each}").fetchall() for each in tables
            ]
            assert rows == [[], [(1,)], []]
            assert connection.execute("SELECT nextval('penstock.ticket')").fetchone() == (1,)
            (told,) = database.left_open(0)
            assert told.startswith("connection penstock-test")
        assert database.left_open() == []
