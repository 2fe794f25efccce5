"""An application is found by its name, or the message says what was tried and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.errors import AppNotFound
from penstock.find_app import find_app

YARD = """
from penstock import Penstock
app = Penstock("memory://")
class Shop:
    jobs = Penstock("memory://")
def make():
    return app
def choosy(colour):
    return app
def lazy():
    return "later"
def broken():
    raise ValueError("no colour")
number = 7
"""


@pytest.fixture
def place(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; what is imported from it is forgotten again."""
    monkeypatch.delenv("PENSTOCK_APP", raising=False)
    for name in ("yard", "pair", "lone", "bare", "needy", "bad", "leaves", "deep", "deep.yard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (here / "yard.py").write_text(YARD)
    return here


def refused(target: str | None) -> str:
    with pytest.raises(AppNotFound) as caught:
        find_app(target)
    return str(caught.value)


@pytest.mark.parametrize("target", ["yard:app", "yard", "yard:make", "yard:make()", " yard:app "])
def test_an_application_is_found_by_any_of_its_names(place: Path, target: str) -> None:
    found = find_app(target)
    assert found is sys.modules["yard"].app


def test_attributes_of_attributes_are_followed(place: Path) -> None:
    assert find_app("yard:Shop.jobs") is sys.modules["yard"].Shop.jobs


def test_a_module_inside_a_package_is_found(place: Path) -> None:
    (place / "deep").mkdir()
    (place / "deep" / "yard.py").write_text(YARD)
    assert isinstance(find_app("deep.yard:app"), Penstock)


def test_the_environment_names_the_application_if_nobody_else_does(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", "yard:app")
    assert isinstance(find_app(None), Penstock)


def test_the_one_application_of_a_module_is_found_under_any_name(place: Path) -> None:
    (place / "lone.py").write_text('from penstock import Penstock\njobs = Penstock("memory://")\n')
    assert find_app("lone") is sys.modules["lone"].jobs


def test_several_applications_have_to_be_told_apart(place: Path) -> None:
    (place / "pair.py").write_text(
        'from penstock import Penstock\none = Penstock("memory://")\ntwo = Penstock("memory://")\n'
    )
    assert refused("pair") == (
        "no application at 'pair': it has 2 of them; write pair:one or pair:two"
    )


def test_a_module_without_an_application_says_so(place: Path) -> None:
    (place / "bare.py").write_text("")
    assert "'bare' has no Penstock(...) in it; make one" in refused("bare")


def test_no_name_at_all_says_how_to_give_one(place: Path) -> None:
    assert refused(None) == (
        "no application: none is named; write module:app, such as shop:app, or set PENSTOCK_APP"
    )


@pytest.mark.parametrize("target", [":app", "yard:", "yard:app:more"])
def test_a_name_that_cannot_be_read_says_so(place: Path, target: str) -> None:
    assert f"no application at {target!r}: it cannot be read; write module:app" in refused(target)


@pytest.mark.parametrize(
    ("target", "better"),
    [("yard.py", "yard:app"), ("src/yard.py:jobs", "src.yard:jobs"), ("./yard.py", "yard:app")],
)
def test_the_name_of_a_file_is_turned_into_that_of_a_module(
    place: Path, target: str, better: str
) -> None:
    assert refused(target).endswith(f"it names a file; name the module: {better}")


def test_a_module_that_is_not_there_is_told_from_one_that_cannot_be_imported(place: Path) -> None:
    (place / "needy.py").write_text("import nowhere_to_be_found\n")
    missing, broken = refused("yart:app"), refused("needy:app")
    assert "there is no module 'yart'; did you mean yard? looked in" in missing
    assert str(place) in missing
    assert "importing 'needy' failed; correct this first:\nTraceback" in broken
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in broken
    assert "find_app.py" not in broken


def test_a_package_that_is_not_there_is_named(place: Path) -> None:
    assert "there is no module 'far.away' (there is no 'far');" in refused("far.away:app")


def test_a_syntax_error_is_shown(place: Path) -> None:
    (place / "bad.py").write_text("def (\n")
    message = refused("bad:app")
    assert "importing 'bad' failed; correct this first:" in message
    assert 'bad.py", line 1' in message
    assert "SyntaxError" in message


def test_a_module_that_exits_is_no_application(place: Path) -> None:
    (place / "leaves.py").write_text("import sys\nsys.exit('bye')\n")
    assert "SystemExit: bye" in refused("leaves:app")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("yard:apq", "'yard' has no 'apq'; did you mean 'app'?"),
        ("yard:zzzzzz", "'yard' has no 'zzzzzz'; there is yard:app"),
        ("yard:Shop.job", "'yard.Shop' has no 'job'; did you mean 'jobs'?"),
        ("yard:number", "that is a int, not a Penstock(...)"),
        ("yard:choosy", "choosy() needs arguments (missing a required argument: 'colour')"),
        ("yard:lazy", "lazy() returned a str, not a Penstock(...)"),
        ("yard:broken", "calling broken() failed; correct this first:\nTraceback"),
    ],
)
def test_what_is_wrong_with_a_name_inside_the_module_is_said(
    place: Path, target: str, message: str
) -> None:
    assert message in refused(target)
