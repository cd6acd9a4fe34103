"""Deltas with the calls that travel in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import astuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline._core import CoreTree
    from trunkline.store.schema import CallRow, ToolRow


def delta_with(core: CoreTree, calls: Iterable[CallRow] = (), tools: Iterable[ToolRow] = ()) -> bytes:
    """The next delta of a tree, with calls of models and of tools."""
    data = core.delta([astuple(call) for call in calls], [astuple(tool) for tool in tools])
    assert data is not None
    return data
