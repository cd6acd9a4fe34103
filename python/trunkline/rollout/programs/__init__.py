"""What a program ``async def program(rollout)`` is given and returns (``trunkline.programs``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.rollout.programs.context import ContextMessage, ModelTurn, ProgramContext

__all__ = [
    "ContextMessage",
    "ModelTurn",
    "ProgramContext",
]

__getattr__ = exports(
    __name__,
    """
rollout.programs.context: ContextMessage ModelTurn ProgramContext
""",
)
