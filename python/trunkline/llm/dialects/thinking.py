"""Thinking in a reply's text: which part of it a model says, and which it only thinks."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["spoken"]

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_TAG: Final = re.compile("(</?think>)")


def spoken(text: str) -> str:
    """Leave the thinking out of a reply.

    A region of thinking goes from ``<think>`` to the next ``</think>``, or to the end where that never comes. A
    ``</think>`` that no ``<think>`` opened ends a region that began before the text, in the prompt: everything up to
    the last such tag is thinking. In doubt a text is thinking, since what is only thought must not be run.

    Args:
        text: What the model wrote.
    """
    kept: list[str] = []
    thinking = False
    for piece in _TAG.split(text):
        if piece == _OPEN:
            thinking = True
        elif piece == _CLOSE:
            if not thinking:
                kept.clear()
            thinking = False
        elif not thinking:
            kept.append(piece)
    return "".join(kept)
