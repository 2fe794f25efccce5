"""Secrets are hidden by their names, at any depth, in JSON and in texts; nothing else is."""

from __future__ import annotations

import json

import pytest

from penstock.core.redaction import (
    HIDDEN,
    is_secret,
    redacted,
    redacted_json,
    redacted_text,
    redacted_traceback,
    secret_values,
    without,
)


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "PASSWORD",
        "db_password",
        "dbPassword",
        "token",
        "access_token",
        "X-Auth-Token",
        "apiKey",
        "api_key",
        "API_KEY",
        "APIKey",
        "client_secret",
        "Authorization",
        "cookies",
        "secret_key",
        "private-key",
        "session_id",
        "jwt",
        "credentials",
        "passphrase",
    ],
)
def test_a_name_with_a_secret_word_is_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["key", "user_id", "author", "tokens", "max_tokens", "secretary", "compass", "order_key", "to"],
)
def test_a_name_that_only_contains_its_letters_is_not(name: str) -> None:
    assert not is_secret(name)


def test_a_task_may_call_any_name_secret() -> None:
    assert is_secret("IBAN", ["iban"])
    assert not is_secret("bank", ["iban"])


def test_nested_values_are_hidden_and_nothing_is_changed_in_place() -> None:
    given = {"user": {"name": "ada", "Password": "hunter2"}, "all": [{"token": {"a": 1}}], "pin": 7}
    shown = redacted(given, ["pin"])
    assert shown == {
        "user": {"name": "ada", "Password": HIDDEN},
        "all": [{"token": HIDDEN}],
        "pin": HIDDEN,
    }
    assert given["user"] == {"name": "ada", "Password": "hunter2"}


def test_a_secret_that_is_not_there_is_shown_as_such() -> None:
    assert redacted({"token": None}) == {"token": None}


def test_json_without_secrets_stays_byte_by_byte() -> None:
    stored = b'{"a": 1.10, "b": 12345678901234567890123, "c": "\\u00e4"}'
    assert redacted_json(stored) is stored


def test_json_with_secrets_keeps_the_rest() -> None:
    shown = redacted_json(b'{"n":12345678901234567890123,"token":"abcdef"}')
    assert json.loads(shown) == {"n": 12345678901234567890123, "token": HIDDEN}


def test_what_is_no_json_is_searched_as_text() -> None:
    assert redacted_json(b"password=hunter2 &c") == f"password={HIDDEN} &c".encode()


def test_secret_values_are_found_at_any_depth_and_as_they_are_quoted() -> None:
    password = 'quoted "so"\nand so'
    payload = json.dumps({"login": {"password": password, "pin": 12345678}, "token": ["x", "long"]})
    values = secret_values(payload.encode(), ["pin"])
    assert "12345678" in values
    assert "long" in values
    assert "x" not in values, "a single letter is in every text"
    for text in (password, repr(password), json.dumps(password)):
        assert "quoted" not in without(f"refused {text}", values)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter2, user=ada", "login failed: password=[redacted], user=ada"),
        ("api_key = 'k e y' refused", "api_key = [redacted] refused"),
        ("{'user': 'ada', 'token': 'abc'}", "{'user': 'ada', 'token': [redacted]}"),
        ('{"accessToken":"abc","n":1}', '{"accessToken":[redacted],"n":1}'),
        ("GET /?token=abc&page=2", "GET /?token=[redacted]&page=2"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [redacted]"),
        (
            "no route to postgresql://me:pw@db/shop",
            "no route to postgresql://me:[redacted]@db/shop",
        ),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [redacted]"),
        ("Bearer authentication failed", "Bearer authentication failed"),
        ("Basic authentication failed", "Basic authentication failed"),
        ("Unexpected token: < at 7", "Unexpected token: < at 7"),
        ("KeyError: 'user'", "KeyError: 'user'"),
        ("the password is too short", "the password is too short"),
    ],
)
def test_a_text_that_names_a_secret_does_not_tell_it(text: str, shown: str) -> None:
    assert redacted_text(text) == shown


@pytest.mark.parametrize(
    "stored", [b"{no json", b"\xff\xfe\xfd", b"[" * 100_000, b'"text"', b"null"]
)
def test_whatever_is_stored_as_arguments_does_not_stop_it(stored: bytes) -> None:
    assert secret_values(stored) == []
    assert isinstance(redacted_json(stored), bytes)


def test_a_text_made_to_be_slow_is_not() -> None:
    text = "token " + "a-" * 8_000 + "=" + "://" + "b." * 8_000
    assert redacted_text(text) == text


def test_lines_of_code_in_a_traceback_stay_as_they_are() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "shop.py", line 7, in login\n'
        "    connect(user, password=password)\n"
        "ConnectionError: password=hunter2 refused\n"
    )
    assert redacted_traceback(trace, ["hunter2"]) == trace.replace("hunter2", HIDDEN)
