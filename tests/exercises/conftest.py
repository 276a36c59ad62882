"""What the tests of all checkers share."""

from collections.abc import Callable

import pytest


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[Callable[[object], None], object], str]:
    """Return what a checker prints about an answer: one sentence or two, on one line."""

    def run(check: Callable[[object], None], answer: object) -> str:
        assert check(answer) is None  # type: ignore[func-returns-value]
        printed = capsys.readouterr()
        assert printed.err == ""
        assert printed.out.count("\n") == 1
        return printed.out.strip()

    return run
