"""The pytest plugin: what tests of an application get without asking.

| what                           | is                                                            |
|--------------------------------|---------------------------------------------------------------|
| ``penstock_sandbox``           | a fixture: ``t = penstock_sandbox(app)``, as ``Sandbox(app)`` |
| ``penstock_seed``              | a fixture: the seed of this test                              |
| ``@interleavings(runs=50)``    | the test runs with 50 seeds                                   |
| ``--penstock-seed=17``         | with this one                                                 |

It is loaded in every run of every test suite beside which Penstock is installed, so it imports
nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Literal

    from penstock.app import Penstock
    from penstock.testing.sandbox import Sandbox

MARK: Final = "penstock_interleavings"
RUNS: Final = 20

F = TypeVar("F", bound=Callable[..., Any])

_SANDBOXES: Final = pytest.StashKey["list[Sandbox]"]()


class MakeSandbox(Protocol):
    """The fixture ``penstock_sandbox``: a sandbox that lasts until the test has ended."""

    def __call__(
        self,
        app: Penstock,
        *,
        mode: Literal["manual", "inline"] = "manual",
        now: datetime | float | None = None,
        strict: bool = True,
        seed: int | None = None,
        max_attempts: int = 10_000,
        connection: object = None,
    ) -> Sandbox: ...


def interleavings(*, runs: int = RUNS) -> Callable[[F], F]:
    """Run a test once for each of so many seeds: ``@interleavings(runs=50)``.

    Each run is a test of its own, with fixtures of its own; its seed is in its name, and is that of
    every sandbox that the fixture makes.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        from penstock.errors import BadOption

        raise BadOption("runs", runs, "give a whole number from 1: a test that never runs is none")
    mark: Callable[[F], F] = getattr(pytest.mark, MARK)(runs=runs)
    return mark


@pytest.fixture
def penstock_seed(request: pytest.FixtureRequest) -> int:
    """The seed that decides in this test what chance would."""
    given: int | None = request.config.getoption("--penstock-seed")
    default = 0 if given is None else given
    return int(getattr(request, "param", default))


@pytest.fixture
def penstock_sandbox(request: pytest.FixtureRequest, penstock_seed: int) -> Iterator[MakeSandbox]:
    """Put an app into a sandbox until the test has ended: ``t = penstock_sandbox(app)``."""
    from penstock.testing.sandbox import Sandbox

    made = request.node.stash[_SANDBOXES] = list[Sandbox]()
    with ExitStack() as stack:

        def make(app: Penstock, *, seed: int | None = None, **options: Any) -> Sandbox:
            sandbox = Sandbox(app, seed=penstock_seed if seed is None else seed, **options)
            made.append(stack.enter_context(sandbox))
            return sandbox

        yield make


# --- hooks --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--penstock-seed",
        type=int,
        default=None,
        metavar="N",
        help="run tests marked with @interleavings with this seed only",
    )


def pytest_configure(config: pytest.Config) -> None:
    text = f"{MARK}(runs={RUNS}): run the test with so many seeds; see penstock.testing"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    if "penstock_seed" not in metafunc.fixturenames:
        metafunc.fixturenames.append("penstock_seed")
    given = metafunc.config.getoption("--penstock-seed")
    seeds = range(mark.kwargs.get("runs", RUNS)) if given is None else [given]
    ids = [f"seed={seed}" for seed in seeds]
    metafunc.parametrize("penstock_seed", list(seeds), ids=ids, indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that would run once, where many runs were asked for, does not run at all."""
    if item.get_closest_marker(MARK) is None:
        return
    given = getattr(item, "callspec", None)
    if given is None or "penstock_seed" not in given.params:
        from penstock.errors import BadOption

        why = "pytest gives a method of unittest.TestCase no parameters; use a plain class"
        raise BadOption("interleavings", item.name, why)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A failure that the test did not look at is its own, not that of its teardown."""
    try:
        result = yield
    except BaseException:
        for sandbox in item.stash.get(_SANDBOXES, []):
            sandbox.strict = False  # the test has failed already, once
        raise
    for sandbox in item.stash.get(_SANDBOXES, []):
        sandbox.check()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test how its jobs failed."""
    report = yield
    sandboxes = item.stash.get(_SANDBOXES, [])
    if report.when == "call" and report.failed and sandboxes:
        import traceback

        failures = [failure for sandbox in sandboxes for failure in sandbox.recorded]
        if failures:
            told = (
                f"{failure}\n{''.join(traceback.format_exception(failure.error))}"
                for failure in failures
            )
            report.sections.append(("Penstock jobs that failed", "\n".join(told)))
    return report
