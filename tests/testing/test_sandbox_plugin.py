"""The pytest plugin, in real test runs of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.errors import BadOption
from penstock.testing import interleavings

pytest_plugins = ["pytester"]

SHOP = """
import asyncio
from penstock import Penstock

app = Penstock("memory://")
stock = {"apples": 0}

@app.task
def send(to: str) -> str:
    return "sent to " + to

@app.task(retries=None)
def broken() -> None:
    raise ValueError("no such address")

@app.task
async def take_one() -> None:
    left = stock["apples"]
    await asyncio.sleep(0)
    stock["apples"] = left + 1
"""


@pytest.fixture
def run(pytester):
    pytester.makepyfile(shop=SHOP)
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")

    def run(tests: str, *options: str) -> pytest.RunResult:
        header = "import pytest\nfrom penstock.testing import *\nfrom shop import *\n"
        pytester.makepyfile(test_shop=header + tests)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=100)

    return run


def test_sync_and_async_tests_get_a_sandbox_of_their_own(run):
    done = run(
        """
        def test_sync(penstock_sandbox):
            t = penstock_sandbox(app)
            job = send.enqueue("ada")
            t.drain()
            assert job.result() == "sent to ada"

        async def test_async(penstock_sandbox):
            t = penstock_sandbox(app, mode="inline")
            assert t.jobs == []
            assert await (await send.aenqueue("bob")).aresult() == "sent to bob"

        def test_nothing_is_left():
            assert app.counts() == []
        """.replace("\n        ", "\n")
    )
    done.assert_outcomes(passed=3)


def test_the_same_with_xdist(run):
    done = run(
        """
        @pytest.mark.parametrize("number", range(6))
        def test_each(penstock_sandbox, number):
            t = penstock_sandbox(app)
            send.enqueue(str(number))
            t.assert_enqueued(send, to=str(number), count=1)
        """.replace("\n        ", "\n"),
        "-n2",
    )
    done.assert_outcomes(passed=6)


def test_what_goes_wrong_unseen_fails_the_test_itself_and_is_shown(run):
    done = run(
        """
        def test_blind(penstock_sandbox):
            t = penstock_sandbox(app)
            broken.enqueue()
            t.drain()

        def test_seen(penstock_sandbox):
            t = penstock_sandbox(app)
            broken.enqueue()
            t.drain()
            assert len(t.failures) == 1

        def test_page(penstock_sandbox):
            t = penstock_sandbox(app)
            broken.enqueue()
            t.drain()
            assert "mail" in "the page"

        def test_idle(penstock_sandbox):
            penstock_sandbox(app).crash(send)
        """.replace("\n        ", "\n")
    )
    done.assert_outcomes(passed=1, failed=3)
    done.stdout.fnmatch_lines(
        [
            "*test_blind*",
            "*an attempt failed and the test did not look:*",
            "*Penstock jobs that failed*",
            "*shop.broken, job *, attempt 1: ValueError: no such address (the job has failed)*",
            "*raise ValueError(*no such address*",
            "*test_page*",
            "*Penstock jobs that failed*",
            "*ValueError: no such address*",
            "*test_idle*",
            "*a crash of shop.send was asked for and never happened*",
        ]
    )


RACE = """
@interleavings(runs=8)
async def test_stock(penstock_sandbox):
    stock["apples"] = 0
    t = penstock_sandbox(app)
    take_one.enqueue_many([(), ()])
    await t.ainterleave(workers=2)
    assert stock["apples"] == 2
"""


def test_a_race_has_its_seed_in_the_name_of_the_test_that_found_it(run):
    done = run(RACE, "-v")
    outcomes = done.parseoutcomes()
    assert outcomes["failed"] > 0
    assert sum(outcomes[each] for each in ("passed", "failed") if each in outcomes) == 8
    failed = [line for line in done.outlines if "FAILED" in line and "seed=" in line]
    seed = failed[0].partition("seed=")[2].partition("]")[0]

    again = run(RACE, f"--penstock-seed={seed}", "-v")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([f"*test_stock?seed={seed}?*FAILED*"])


def test_a_seed_may_be_taken_without_a_sandbox(run):
    done = run(
        """
        @interleavings(runs=3)
        def test_seed(penstock_seed):
            assert penstock_seed in (0, 1, 2)

        @interleavings(runs=2)
        def test_silent():
            pass

        def test_plain(penstock_seed):
            assert penstock_seed == 0
        """.replace("\n        ", "\n"),
        "--strict-markers",
    )
    done.assert_outcomes(passed=6)


def test_loading_the_plugin_loads_nothing_else():
    source = (
        "import sys, pytest; before = set(sys.modules); import penstock.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60)
    assert done.stdout.split() == [b"penstock", b"penstock.testing", b"penstock.testing.plugin"]


def test_every_public_name_is_there():
    import penstock.testing

    for name in penstock.testing.__all__:
        assert hasattr(penstock.testing, name)
    assert set(penstock.testing.__all__) <= set(dir(penstock.testing))
    with pytest.raises(AttributeError, match="Sandbx"):
        penstock.testing.Sandbx  # noqa: B018


def test_no_runs_are_refused():
    for wrong in (0, -1, True):
        with pytest.raises(BadOption, match="a test that never runs is none"):
            interleavings(runs=wrong)


def test_a_test_case_that_would_run_once_is_told_so(run):
    done = run(
        """
        import unittest

        class TestShop(unittest.TestCase):
            @interleavings(runs=5)
            def test_once(self): ...

        @interleavings(runs=2)
        class TestPlain:
            def test_twice(self): ...
        """.replace("\n        ", "\n")
    )
    done.assert_outcomes(errors=1, passed=2)
    done.stdout.fnmatch_lines(["*no parameters; use a plain class*"])
