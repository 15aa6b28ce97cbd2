"""Who is told to have done it."""

import getpass

import pytest

from scheduler.control.reports import operator_here, user_here


@pytest.mark.parametrize("error", [ImportError, KeyError, OSError])
def test_a_user_without_a_name_here_is_told_by_number(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr("os.getuid", lambda: 1234, raising=False)
    assert user_here() == "1234"
    assert operator_here().startswith("1234@")
