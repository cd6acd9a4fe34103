"""Looks for a key in everything that an error could show."""

from __future__ import annotations

import traceback


def assert_no_secret(shown: object, secret: str) -> None:
    """Fail if a text, or an error with all that hangs on it, shows the secret."""
    if isinstance(shown, BaseException):
        for error in chain(shown):
            for text in (str(error), repr(error), repr(error.args), repr(vars(error))):
                assert secret not in text, type(error)
        assert secret not in "".join(traceback.format_exception(shown))
    else:
        assert secret not in str(shown)


def chain(error: BaseException) -> list[BaseException]:
    """An error, its causes and contexts, each once."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and one not in found:
            found.append(one)
            todo += [one.__cause__, one.__context__]
    return found
