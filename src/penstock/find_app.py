"""Find an application by its name on the command line, as Flask and uvicorn do.

``shop:app`` is the attribute ``app`` of the module ``shop``; ``shop:make.app`` goes on from there;
``shop`` alone is the one application in it. A function that needs no arguments is called. The
working directory is looked at first. What is wrong is said in the order a person would try things.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

from penstock import app as app_module
from penstock import imports as imports_module
from penstock.app import Penstock
from penstock.config import PREFIX
from penstock.errors import AppNotFound, UsageError
from penstock.stores import parse

VARIABLE: Final = "PENSTOCK_APP"
_OURS: Final = (__file__, app_module.__file__, imports_module.__file__)
_USUAL: Final = ("app", "penstock")
_HOW: Final = f"write module:app, such as shop:app, or set {VARIABLE}"


def find_app(target: str | None, imports: Iterable[str] = ()) -> Penstock:
    """The application that ``target`` names, else the environment, with all its tasks: the modules
    in its setting ``imports`` are imported, and those in ``imports``.

    On failure: ``AppNotFound``, also for an error that a module itself raises: that one is the
    ``__cause__``, and its traceback begins in the module. ``BadOption`` for an import that is not
    there.
    """
    named = (target or os.environ.get(VARIABLE, "")).strip()
    if not named:
        raise AppNotFound("", f"none is named; {_HOW}")
    place, _, path = named.partition(":")
    if not place or ":" in path or named.endswith(":"):
        raise AppNotFound(named, f"it cannot be read; {_HOW}")
    if place.endswith(".py") or os.sep in place:
        guess = place.removesuffix(".py").strip("./").replace(os.sep, ".")
        why = f"it names a file; name the module: {guess}:{path or 'app'}"
        raise AppNotFound(named, why)
    _look_here_first()
    module = _imported(named, place)
    found = _follow(named, module, path) if path else _only(named, module)
    app = _called(named, found)
    _import_tasks(named, app, imports)
    return app


def _import_tasks(named: str, app: Penstock, imports: Iterable[str]) -> None:
    try:
        app.import_tasks(*imports)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise AppNotFound(named, _raised("importing the modules of its tasks", error)) from error


def find_app_on(
    target: str | None, url: str | None, imports: Iterable[str] = ()
) -> tuple[Penstock, str | None]:
    """The application that ``target`` names, with all its tasks, on the store that ``url`` names if
    it is given; and a warning if its code names another one than ``url`` or ``PENSTOCK_URL`` does.
    """
    app = find_app(target, imports)
    in_code = None if app._url_in_code is None else app.url
    if url is not None:
        app._move(url)
    named = "--url" if url is not None else f"{PREFIX}URL"
    other = os.environ.get(named) if url is None else url
    if in_code is None or not other or parse(other).absolute == in_code.absolute:
        return app, None
    name = (target or os.environ.get(VARIABLE, "")).strip()
    return app, (
        f"the code of {name} names the store {in_code}, and {named} names {parse(other)}; "
        f"{app.url} is used"
    )


def _look_here_first() -> None:
    here = os.getcwd()
    if not sys.path or sys.path[0] not in ("", here):
        sys.path.insert(0, here)


def _imported(named: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # The module itself, or a package that it is in, is not there; else it is one it imports.
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise AppNotFound(named, _missing(place, error.name)) from None
        raise AppNotFound(named, _raised(f"importing {place!r}", error)) from error
    except (Exception, SystemExit) as error:
        raise AppNotFound(named, _raised(f"importing {place!r}", error)) from error


def _missing(place: str, missing: str) -> str:
    near = get_close_matches(place, _modules_here(), 1)
    hint = f"did you mean {near[0]}? " if near else ""
    part = "" if missing == place else f" (there is no {missing!r})"
    return (
        f"there is no module {place!r}{part}; {hint}looked in {os.getcwd()} and on sys.path; "
        "go to the directory it is in, or install it"
    )


def _modules_here() -> list[str]:
    try:
        names = os.listdir()
    except OSError:
        return []
    return [name.removesuffix(".py") for name in names if name.endswith(".py")]


def _raised(doing: str, error: BaseException) -> str:
    """What went wrong inside the module, from its first own line on."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    told = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return f"{doing} failed; correct this first:\n{told}"


def _is_ours(file: str) -> bool:
    return file in _OURS or "importlib" in file


def _follow(named: str, module: ModuleType, path: str) -> Any:
    found: Any = module
    walked = module.__name__
    for name in path.removesuffix("()").split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            near = get_close_matches(name, [each for each in dir(found) if each[:1] != "_"], 1)
            hint = f"did you mean {near[0]!r}?" if near else _have(module)
            raise AppNotFound(named, f"{walked!r} has no {name!r}; {hint}") from None
        walked += f".{name}"
    return found


def _only(named: str, module: ModuleType) -> Any:
    for name in _USUAL:
        if isinstance(found := getattr(module, name, None), Penstock):
            return found
    apps = _apps(module)
    if len(set(apps.values())) == 1:
        return next(iter(apps.values()))
    if apps:
        choice = " or ".join(f"{named}:{name}" for name in apps)
        raise AppNotFound(named, f"it has {len(apps)} of them; write {choice}")
    raise AppNotFound(named, f"{named!r} has no Penstock(...) in it; make one, {_HOW}")


def _apps(module: ModuleType) -> dict[str, Penstock]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Penstock)}


def _have(module: ModuleType) -> str:
    names = ", ".join(f"{module.__name__}:{name}" for name in _apps(module))
    return f"there is {names}" if names else "and no Penstock(...) in it by another name"


def _called(named: str, found: Any) -> Penstock:
    """The application itself, or what a function without arguments returns."""
    if isinstance(found, Penstock):
        return found
    if not (inspect.isfunction(found) or inspect.ismethod(found)):
        raise AppNotFound(named, f"that is {_kind(found)}, not a Penstock(...); {_HOW}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        why = f"{found.__qualname__}() needs arguments ({error}); name a function without"
        raise AppNotFound(named, why) from None
    try:
        made = found()
    except (Exception, SystemExit) as error:
        raise AppNotFound(named, _raised(f"calling {found.__qualname__}()", error)) from error
    if not isinstance(made, Penstock):
        why = f"{found.__qualname__}() returned {_kind(made)}, not a Penstock(...)"
        raise AppNotFound(named, why)
    return made


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"
