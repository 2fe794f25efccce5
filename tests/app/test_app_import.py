"""Importing Penstock: the public names are there, and nothing is loaded that may not be needed."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import penstock


def test_every_public_name_is_there():
    assert len(set(penstock.__all__)) == len(penstock.__all__)
    for name in penstock.__all__:
        assert hasattr(penstock, name)


def test_the_example_in_the_docstring_works():
    assert doctest.testmod(penstock).failed == 0


OURS = ("penstock.worker.worker", "penstock.leader.leader", "penstock.engines.sqlite.engine")
OTHERS = ("sqlite3", "psycopg", "redis", "uvloop", "multiprocessing", "tomllib", "pydantic")


@pytest.mark.parametrize("module", [*OURS, *OTHERS])
def test_importing_penstock_does_not_load(module):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; from penstock import *; sys.exit({module!r} in sys.modules)",
        ],
        timeout=60,
    )
    assert done.returncode == 0


def test_importing_penstock_itself_loads_nothing_of_it():
    source = (
        "import sys, penstock; sys.exit(any(name.startswith('penstock.') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == 0


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert "Penstock" in dir(penstock)
    with pytest.raises(AttributeError, match="no attribute 'Penstok'"):
        penstock.Penstok  # noqa: B018


def test_an_app_in_memory_never_loads_sqlite():
    source = (
        "import sys, penstock\n"
        "with penstock.Penstock('memory://') as app: app.enqueue('task')\n"
        "sys.exit('sqlite3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == 0
