"""Where a child process finds a task: the module and the name by which it can be imported.

A task of the main script has no module to import. Its script is run again in the child, under the
name ``__mp_main__``, as the ``spawn`` of multiprocessing does: what stands below
``if __name__ == "__main__":`` is not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import msgspec

from penstock.core.spec import Spec

PROGRAM: Final = (
    "import json, sys; sys.path[:], log = json.loads(sys.argv[1]); del sys.argv[1:]; "
    "from penstock.worker.child.main import main; main(log)"
)
"""What the interpreter of a child runs; its argument is the worker's ``sys.path``, and how it logs,
if `penstock worker` has decided that.
"""

MAIN: Final = ("__main__", "__mp_main__")
"""The names under which a main module runs."""


class MainScript(msgspec.Struct, frozen=True):
    """The main module of a worker's process, and how it was started."""

    module: str | None
    """As in ``python -m module``; else it is a file."""
    path: str
    argv: tuple[str, ...] = ()


class TaskLocation(msgspec.Struct, frozen=True):
    """Where a function is declared."""

    module: str
    qualname: str
    script: MainScript | None = None
    """What to run instead of importing the module."""
    owner: str | None = None
    """The module that makes the task whole, by including its router in an app."""


class NotImportable(msgspec.Struct, frozen=True):
    """A function that no other process can find."""

    why: str


def is_child() -> bool:
    """This process is a child that runs attempts for a worker, or was forked from one."""
    return PROGRAM in sys.orig_argv


def locate(
    function: Callable[..., object], owner: str | None = None
) -> TaskLocation | NotImportable:
    """Where a child finds a function that is declared in this process; ``owner`` is the module
    that includes its router, if it has one.
    """
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not module or not qualname:
        return NotImportable("it has no name of its own; declare a function with def in a module")
    if qualname.endswith("<lambda>"):
        return NotImportable("a child process cannot import a lambda; declare a function with def")
    if "<locals>" in qualname:
        why = "a child process cannot import it from inside another function"
        return NotImportable(f"{why}; declare it at the top level of a module")
    if owner in MAIN:
        why = "the main script includes its router, and a child process does not run that"
        return NotImportable(f"{why}; include it in a module that the script imports")
    if module not in MAIN:
        return TaskLocation(module, qualname, owner=owner)
    script = _script()
    if script is None:
        why = "a child process cannot import what is typed in or given with -c"
        return NotImportable(f"{why}; declare it in a module or a script")
    return TaskLocation(module, qualname, script)


def _script() -> MainScript | None:
    main: Any = sys.modules.get("__main__")
    # A script that has run to its end has lost its ``__file__``, while other threads go on.
    path = getattr(main, "__file__", None) or getattr(main.__loader__, "path", None)
    if path is None or not os.path.isfile(path):
        return None
    spec = getattr(main, "__spec__", None)
    # A directory or an archive that is run has a spec too, but no name to find it by.
    name = None if spec is None or spec.name in MAIN else spec.name
    return MainScript(name, os.path.abspath(path), tuple(sys.argv))


class ChildTasks:
    """Finds each task once."""

    def __init__(self) -> None:
        self._found: dict[tuple[TaskLocation, str], Spec] = {}
        self._main: ModuleType | None = None

    def find(self, location: TaskLocation, task: str) -> Spec:
        """The task as this process knows it.

        On failure: whatever importing its module raises; LookupError if it is not there.
        """
        spec = self._found.get((location, task))
        if spec is None:
            spec = self._found[location, task] = find_spec(
                self._module(location), location.qualname, task
            )
        return spec

    def _module(self, location: TaskLocation) -> ModuleType:
        if location.owner is not None:
            importlib.import_module(location.owner)
        if location.script is None:
            return importlib.import_module(location.module)
        if self._main is None:
            self._main = run_again(location.script)
        return self._main


def find_spec(module: ModuleType, qualname: str, task: str) -> Spec:
    """The task by its function's name, or among the module's tasks."""
    named: Any = module
    for name in qualname.split("."):
        named = getattr(named, name, None)
    for candidate in (named, *vars(module).values()):
        try:
            spec = getattr(candidate, "spec", None)
        except Exception:  # a proxy that stands for something else, such as INJECTED
            continue
        if isinstance(spec, Spec) and spec.name == task:
            return spec
    raise LookupError(f"{module.__name__} has no task {task!r}")


def run_again(script: MainScript) -> ModuleType:
    """Run the main module of the worker here, under another name."""
    before = {name: sys.modules.get(name) for name in MAIN}
    argv = sys.argv[:]
    module = ModuleType(MAIN[1])
    code = _code_of(script, module)
    for name in MAIN:
        sys.modules[name] = module
    sys.argv[:] = script.argv
    try:
        exec(code, vars(module))
    except BaseException:
        sys.argv[:] = argv
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old
        raise
    return module


def _code_of(script: MainScript, module: ModuleType) -> Any:
    """The code of a script; says in the module where it is from."""
    module.__file__ = script.path
    if script.module is None:
        module.__spec__ = None
        with open(script.path, "rb") as file:
            return compile(file.read(), script.path, "exec", dont_inherit=True)
    spec = importlib.util.find_spec(script.module)
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_code"):
        raise ImportError(f"{script.module} has no code to run", name=script.module)
    module.__spec__, module.__loader__, module.__package__ = spec, loader, spec.parent
    return loader.get_code(script.module)
