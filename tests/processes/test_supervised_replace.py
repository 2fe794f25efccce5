"""How processes are replaced without losing a job: by a signal, by limits, by new code."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import termios

from penstock.core.job import State
from processes.conftest import Shop, Supervised, any_store


def write(shop: Shop, answer: str) -> None:
    """An application whose one task answers this."""
    (shop.place / "yard.py").write_text(
        "from penstock import Penstock\n"
        f"app = Penstock({shop.url!r})\n"
        "@app.task\n"
        "async def ask() -> str:\n"
        f"    return {answer}\n"
    )


def is_ready(worker: Supervised) -> bool:
    return "penstock worker ready" in worker.text()


def test_sighup_under_load_replaces_every_process_and_loses_nothing(shop: Shop) -> None:
    worker = shop.supervisor("--processes", "2", "--concurrency", "5")
    shop.until(lambda: is_ready(worker), "both processes")
    before = shop.pids()
    ids = shop.enqueue("brief", 400)
    shop.until(lambda: shop.trace("begin"), "the load")
    worker.send(signal.SIGHUP)
    shop.until_ended(ids)
    shop.until(lambda: not before & shop.pids() and len(shop.pids()) == 2, "two others")
    jobs = [shop.app.job(id).status() for id in ids]
    assert {(job.state, job.failures, job.crashes) for job in jobs} == {(State.SUCCEEDED, 0, 0)}
    begun = sorted(int(line[1]) for line in shop.trace("begin"))
    assert begun == list(range(400))
    assert worker.text().count("process replaced") == 2


def test_an_attempt_may_take_its_time_in_a_process_that_was_replaced(shop: Shop) -> None:
    """Its drain has no end, until the whole worker is told to stop."""
    ids = shop.enqueue("patient", 1)
    worker = shop.supervisor("--drain", "0s")
    shop.until(lambda: shop.trace("begin"), "the attempt")
    (old,) = shop.pids()
    worker.send(signal.SIGHUP)
    shop.until(lambda: "process replaced" in worker.text(), "the replacement")
    shop.until(lambda: len(shop.pids()) == 2, "both of them")
    assert old in shop.pids()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0, worker.text()
    assert shop.app.job(ids[0]).status().state is State.READY


def test_sighup_brings_new_code_and_code_that_does_not_load_changes_nothing(shop: Shop) -> None:
    write(shop, "'old'")
    worker = shop.supervisor(module="yard:app")
    shop.until(lambda: is_ready(worker), "the process")
    before = shop.pids()
    assert shop.app.enqueue("yard.ask", {}).result(timeout=60) == "old"
    (shop.place / "yard.py").write_text("import this is not Python\n")
    worker.send(signal.SIGHUP)
    shop.until(lambda: "process not replaced" in worker.text(), "the refusal")
    assert "SyntaxError" in worker.text()
    assert shop.pids() == before
    assert shop.app.enqueue("yard.ask", {}).result(timeout=60) == "old"
    write(shop, "'new, at last'")
    worker.send(signal.SIGHUP)
    shop.until(lambda: shop.pids() and not before & shop.pids(), "the new process")
    assert shop.app.enqueue("yard.ask", {}).result(timeout=60) == "new, at last"


@any_store
def test_a_change_of_the_code_replaces_the_processes_in_development(shop: Shop) -> None:
    (shop.place / "yard.py").write_text("import this is not Python\n")
    worker = shop.supervisor("--reload", module="yard:app")
    shop.until(lambda: "waiting for a code change" in worker.text(), "the complaint")

    def answers(answer: str) -> bool:
        return shop.app.enqueue("yard.ask", {}).result(timeout=60) == answer

    write(shop, "'first'")
    shop.until(lambda: is_ready(worker), "the process")
    assert answers("first")
    (shop.place / "yard.py").write_text("and now this\n")
    shop.until(lambda: "process not replaced" in worker.text(), "the error")
    write(shop, "'second, which is longer'")
    shop.until(lambda: answers("second, which is longer"), "the new code")
    worker.send(signal.SIGINT)
    assert worker.ended() == 0, worker.text()


def test_a_process_is_replaced_after_so_many_jobs(shop: Shop) -> None:
    worker = shop.supervisor("--max-jobs", "50", "--concurrency", "5")
    shop.until(lambda: is_ready(worker), "the process")
    before = shop.pids()
    ids = shop.enqueue("brief", 300)
    shop.until_ended(ids)
    jobs = [shop.app.job(id).status() for id in ids]
    assert {(job.state, job.failures, job.crashes) for job in jobs} == {(State.SUCCEEDED, 0, 0)}
    assert sorted(int(line[1]) for line in shop.trace("end")) == list(range(300))
    shop.until(lambda: "of max_jobs 50" in worker.text(), "the replacement")
    shop.until(lambda: shop.pids() and not before & shop.pids(), "its successor")


@any_store
def test_a_process_is_replaced_when_it_has_too_much_memory(shop: Shop) -> None:
    worker = shop.supervisor("--max-memory", "150MB")
    shop.until(lambda: is_ready(worker), "the process")
    before = shop.pids()
    greedy = shop.app.enqueue("processes.shop.greedy", {}).id
    shop.until(lambda: shop.pids() and not before & shop.pids(), "its successor")
    assert "of max_memory" in worker.text()
    shop.until_ended([greedy, *shop.enqueue("quick", 5)])
    assert shop.app.job(greedy).status().attempt == 1


@any_store
def test_sighup_without_a_terminal_that_was_there_means_stop(shop: Shop) -> None:
    """As when the window is closed in which the worker was started."""
    master, slave = pty.openpty()
    log = shop.place / "terminal.log"
    code = (
        "import fcntl, os, signal, sys, termios\n"
        # Whoever runs the tests under nohup does not mean this worker, which would go on.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'penstock', 'worker', *sys.argv[1:]])\n"
    )
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "processes.shop:app"],
            stdin=slave,
            stdout=file,
            stderr=file,
            cwd=shop.place,
            env=shop.environment,
        )
    os.close(slave)
    try:
        shop.until(lambda: "penstock worker ready" in log.read_text(), "the worker")
        assert termios.tcgetattr(master)
        os.close(master)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert 'stopping why="the terminal is gone"' in log.read_text()


@any_store
def test_systemd_hears_how_it_goes(shop: Shop) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(shop.place / "notify"))
        manager.settimeout(60)
        worker = shop.supervisor(NOTIFY_SOCKET=str(shop.place / "notify"))

        def heard(line: str) -> None:
            while line not in manager.recv(4096).decode().splitlines():
                pass

        heard("READY=1")
        worker.send(signal.SIGHUP)
        heard("RELOADING=1")
        heard("READY=1")
        worker.send(signal.SIGTERM)
        heard("STOPPING=1")
        assert worker.ended() == 0
