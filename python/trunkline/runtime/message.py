"""The form that messages between controller and workers have."""

from __future__ import annotations

import msgspec

__all__ = ["Message"]


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base: encoded as an array whose first element names the type."""
