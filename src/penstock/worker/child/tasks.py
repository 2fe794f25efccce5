"""The tasks that a child process has found so far."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from penstock.core.spec import Spec
from penstock.worker.child.place import MAIN, Place, Script


class ChildTasks:
    """Finds each task once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Place, str], Spec] = {}
        self._main: ModuleType | None = None

    def find(self, place: Place, task: str) -> Spec:
        """The task as this process knows it.

        On failure: whatever importing its module raises; LookupError if it is not there.
        """
        spec = self._found.get((place, task))
        if spec is None:
            spec = self._found[place, task] = find_spec(self._module(place), place.qualname, task)
        return spec

    def _module(self, place: Place) -> ModuleType:
        if place.script is None:
            return importlib.import_module(place.module)
        if self._main is None:
            self._main = run_again(place.script)
        return self._main


def find_spec(module: ModuleType, qualname: str, task: str) -> Spec:
    """The task by its function's name, or among the module's tasks."""
    named: Any = module
    for name in qualname.split("."):
        named = getattr(named, name, None)
    for candidate in (named, *vars(module).values()):
        spec = getattr(candidate, "spec", None)
        if isinstance(spec, Spec) and spec.name == task:
            return spec
    raise LookupError(f"{module.__name__} has no task {task!r}")


def run_again(script: Script) -> ModuleType:
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


def _code_of(script: Script, module: ModuleType) -> Any:
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
