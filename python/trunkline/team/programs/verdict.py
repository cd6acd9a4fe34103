"""Verdicts: whether a verifier said yes."""

from __future__ import annotations

from trunkline.bounds import shown
from trunkline.errors import ConfigError

__all__ = ["check_lenient", "said_yes"]


def said_yes(text: str, yes: str, no: str, *, lenient: bool, cased: bool = False) -> bool:
    """Read a verdict.

    Args:
        text: What the verifier said.
        yes: What stands anywhere in a yes, in lower case.
        no: Likewise of a no.
        lenient: Whether yes beats no, and a verdict that cannot be read is a yes; else both are a no.
        cased: Whether only lower case counts.
    """
    read = text if cased else text.lower()
    return yes in read or no not in read if lenient else yes in read and no not in read


def check_lenient(lenient: object) -> None:
    """Refuse a setting that is not true or false.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(lenient, bool):
        raise ConfigError(f"lenient must be true or false, not {shown(lenient)}")
