"""Sync sessions of SQLAlchemy need no greenlet; SQLAlchemy installs it for async ones only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import sys


class NoGreenlet:
    """What the import of a package says that is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "greenlet":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoGreenlet())

from sqlalchemy import text
from sqlalchemy.orm import Session

from penstock import INJECTED, Penstock

app = Penstock(sys.argv[1])


@app.task(transactional=True, retries=0)
def count(db: Session = INJECTED) -> int:
    return db.execute(text("SELECT 6 * 7")).scalar_one()


jobs = [count.enqueue(), count.enqueue()]
app.run_worker(until_empty=True, leads=False)
print([job.result(timeout=10) for job in jobs])
'''


def test_a_sync_session_works_at_the_first_attempt_where_greenlet_is_not_installed(
    postgres_url: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, str(program), postgres_url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, "[42, 42]\n"), done.stderr
