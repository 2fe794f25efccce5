"""Settings: where they come from, which one counts, and what is said of those that do not fit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Penstock
from penstock.config import Settings, load
from penstock.core.units import seconds
from penstock.errors import BadDuration, BadOption


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    return tmp_path


def settings(given=None, environ=None) -> Settings:
    return load(given or {}, seconds=seconds, environ=environ or {})


def test_without_a_word_everything_has_its_default(here):
    found = settings()
    assert found.url == "sqlite:///penstock.db"
    assert (found.max_payload, found.max_result) == (1 << 20, 1 << 20)
    assert (found.keep_finished, found.remember) == (7 * 86400, 7 * 86400)
    assert (found.enqueue_timeout, found.lease, found.priorities) == (30.0, 15.0, {})


def test_arguments_count_before_the_environment_before_the_file(here):
    (here / "penstock.toml").write_text('lease = "5s"\ndrain = 1\nthreads = 2\n')
    environ = {"PENSTOCK_DRAIN": "2m", "PENSTOCK_THREADS": "3"}
    found = settings({"threads": 4}, environ)
    assert (found.lease, found.drain, found.threads) == (5.0, 120.0, 4)


def test_settings_may_stand_in_pyproject(here):
    (here / "pyproject.toml").write_text(
        '[tool.penstock]\nurl = "memory://"\npriorities = {vip = -1}\n'
    )
    found = settings()
    assert (found.url, found.priorities) == ("memory://", {"vip": -1})


def test_a_file_of_its_own_counts_instead_of_pyproject(here):
    (here / "pyproject.toml").write_text("[tool.penstock]\nthreads = 1\ndrain = 1\n")
    (here / "penstock.toml").write_text("threads = 2\n")
    assert (settings().threads, settings().drain) == (2, 30.0)


def test_a_pyproject_without_a_word_about_penstock_says_nothing(here):
    (here / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert settings() == Settings()
    (here / "pyproject.toml").write_text('[project]\ndependencies = ["penstock"]\n')
    assert settings() == Settings()


def test_the_environment_of_others_is_left_alone(here):
    environ = {"PENSTOCK_SERVICE_HOST": "10.0.0.1", "PENSTOCK_APP": "mail:app", "PENSTOCK_URL": ""}
    assert settings(environ=environ) == Settings()


def test_labels_of_priorities_can_come_as_text(here):
    found = settings(environ={"PENSTOCK_PRIORITIES": "urgent=-5, bulk = 20"})
    assert found.priorities == {"urgent": -5, "bulk": 20}


def test_durations_may_be_text_or_timedeltas(here):
    found = settings({"keep_finished": timedelta(days=1), "remember": "2w", "drain": 0})
    assert (found.keep_finished, found.remember, found.drain) == (86400, 14 * 86400, 0)


def test_an_app_takes_its_url_from_the_environment(here, monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "memory://shared-by-environment")
    assert repr(Penstock()) == "<Penstock memory://shared-by-environment, 0 tasks>"
    assert repr(Penstock("memory://")) == "<Penstock memory://, 0 tasks>"


def test_an_app_without_a_url_uses_a_file_here(here):
    with Penstock() as app:
        assert list(here.iterdir()) == []
        app.enqueue("task")
    assert (here / "penstock.db").exists()


def test_an_apps_labels_are_added_to_the_three(here):
    with Penstock("memory://", priorities={"vip": -7, "low": 50}) as app:
        found = [
            app.enqueue("task", priority=label).status().priority
            for label in ("high", "normal", "low", "vip")
        ]
    assert found == [0, 5, 50, -7]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_payload": 0}, "max_payload=0: give a whole number from 1"),
        ({"threads": True}, "threads=True: give a whole number from 1"),
        ({"lease": 0}, "lease=0: give a duration above 0"),
        (
            {"priorities": {"vip": 5000}},
            "priorities={'vip': 5000}: give labels and whole numbers from -1000 to 1000, such as "
            "urgent=-5,bulk=20",
        ),
        ({"priorities": 7}, "priorities=7: give labels and whole numbers"),
        ({"priorities": {"vip": 0.5}}, "priorities={'vip': 0.5}: give labels and whole numbers"),
        (
            {"colour": "red"},
            "colour='red': no such setting; there are url, max_payload, max_result, "
            "keep_finished, remember, enqueue_timeout, wait_for_store, lease, drain, concurrency, "
            "threads, children, prefetch, keyed_prefetch, patience, poll, grace, stall_limit, "
            "leader_ttl, upkeep_every, upkeep_batch, enqueue_batch, crash_limit, store_timeout, "
            "store_tries, priorities",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(here, given, message):
    with pytest.raises(BadOption) as caught:
        Penstock("memory://", **given)
    assert str(caught.value).startswith(message)


def test_an_error_names_the_variable_it_comes_from(here):
    with pytest.raises(BadOption) as caught:
        settings(environ={"PENSTOCK_THREADS": "many"})
    assert str(caught.value) == "PENSTOCK_THREADS='many': give a whole number from 1"
    with pytest.raises(BadDuration) as trouble:
        settings(environ={"PENSTOCK_LEASE": "long"})
    assert str(trouble.value).startswith("'long' is no duration: PENSTOCK_LEASE has no number")
    with pytest.raises(BadOption, match="^PENSTOCK_PRIORITIES='urgent': give labels and whole"):
        settings(environ={"PENSTOCK_PRIORITIES": "urgent"})


def test_an_error_names_the_file_it_comes_from(here):
    (here / "penstock.toml").write_text("thraeds = 2\n")
    with pytest.raises(BadOption, match="^penstock.toml: thraeds=2: no such setting; there are"):
        settings()
    (here / "penstock.toml").write_text("threads = \n")
    with pytest.raises(BadOption, match="^config='penstock.toml': is no TOML: Invalid value"):
        settings()


def test_a_file_that_cannot_be_read_is_no_riddle(here):
    (here / "penstock.toml").mkdir()
    with pytest.raises(BadOption) as caught:
        settings()
    assert str(caught.value) == "config='penstock.toml': cannot be read (Is a directory)"


def test_settings_do_not_show_the_password_of_the_store(here):
    assert "secret" not in repr(settings({"url": "postgresql://me:secret@host/db"}))
