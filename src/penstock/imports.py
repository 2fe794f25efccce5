"""Import the modules that declare an app's tasks: by name, or by a pattern over packages.

``mail.tasks`` is a module. In ``shop.*.tasks`` the star stands for every package of ``shop``, and
those of them without ``tasks`` are passed over. A worker imports them before it starts, and so does
each command that loads an app: never the ``Penstock(...)`` call itself, for those modules import
the app.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from types import ModuleType

from penstock.errors import BadOption

_WILD = frozenset("*?[")


def import_all(names: Iterable[str]) -> list[ModuleType]:
    """Import every module of these names and patterns, in their order.

    On failure: ``BadOption`` for a name or a pattern that leads to no module; whatever a module
    itself raises.
    """
    return [importlib.import_module(module) for name in names for module in modules(name)]


def modules(name: str) -> list[str]:
    """The modules that a name or pattern stands for.

    On failure: ``BadOption``; whatever a package above them raises when it is imported.
    """
    found = [""]
    for part in name.split("."):
        found = [module for parent in found for module in _within(parent, part)]
    if not found:
        why = f"there is no such module; looked in {os.getcwd()} and on sys.path"
        raise BadOption("imports", name, why)
    return found


def _within(parent: str, part: str) -> Iterator[str]:
    """The modules of ``parent`` that a part of a name stands for."""
    place = f"{parent}." if parent else ""
    if _WILD.isdisjoint(part):
        if _exists(place + part):
            yield place + part
        return
    path = getattr(importlib.import_module(parent), "__path__", None)
    if path is None:
        return
    names = {module.name for module in pkgutil.iter_modules(path)} | _folders(path)
    yield from (place + each for each in sorted(names) if fnmatchcase(each, part))


def _folders(path: Iterable[str]) -> set[str]:
    """Packages without an ``__init__.py``, which ``pkgutil`` passes over."""
    entries = [entry for place in path if os.path.isdir(place) for entry in os.scandir(place)]
    names = {entry.name for entry in entries if entry.is_dir() and entry.name.isidentifier()}
    return {name for name in names if not name.startswith("__")}


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        # Its parent is a module, not a package; else a package above it imports what is not there.
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return False
        raise
    except ValueError:  # what runs as __main__ has no spec
        return True
