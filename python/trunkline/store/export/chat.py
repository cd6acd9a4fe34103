"""The format ``messages``: conversations as chat APIs take them, also for fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.store.export.leaves import Leaf
    from trunkline.types import JSON

__all__ = ["FIELDS", "Chat", "tools_of"]

FIELDS: Final = {
    "messages": "the conversation from the first prompt to the leaf, in the OpenAI form, as it was sent",
    "tools": "definitions of the tools that the model was offered beside the messages; absent where there were none",
    "task": "the task's id",
    "rollout": "the number of the rollout in its tree",
    "path": "its fork path: turn, draw, turn, draw, ...",
    "weight": "how many rollouts the record stands for",
    "reward": "its reward; null while unscored",
    "answer": "its final answer, or null",
    "references": "the accepted answers",
    "termination": "why it ended; null while it grows",
    "compressed_reasoning": "the report on it, or null",
}
"""The fields of a record, and what they are."""


def tools_of(settings: Mapping[str, JSON]) -> list[JSON]:
    """The tools that a run offered its model as the API does, apart from the messages.

    Where tools are spoken about in the text, the messages say what they are. Roles of a team, and what a program asks,
    have tools of their own from turn to turn, so nothing is said of them.

    Args:
        settings: The settings of the run.

    Returns:
        Their definitions; empty where nobody knows of any.
    """
    agent = settings.get("agent")
    if not isinstance(agent, dict) or settings.get("team") is not None or settings.get("program") is not None:
        return []
    dialect, tools = agent.get("dialect"), agent.get("tools")
    native = isinstance(dialect, dict) and dialect.get("kind") == "native"
    return list(tools) if native and isinstance(tools, list) else []


class Chat:
    """Makes records of this format.

    Args:
        settings: The settings of the run.
    """

    fields: Final = tuple(FIELDS)

    def __init__(self, settings: Mapping[str, JSON]) -> None:
        tools = tools_of(settings)
        self._tools: dict[str, JSON] = {"tools": tools} if tools else {}

    def lacks(self, leaf: Leaf) -> str | None:
        """Why a record cannot be had in this format; it always can."""
        del leaf
        return None

    def record(self, leaf: Leaf) -> dict[str, Any]:
        """Make the record of a leaf."""
        first = leaf.first
        return {
            "messages": leaf.raw,
            **self._tools,
            "task": first.task.id,
            "rollout": first.id,
            "path": first.path,
            "weight": leaf.weight,
            "reward": leaf.reward,
            "answer": first.answer,
            "references": leaf.references,
            "termination": first.termination,
            "compressed_reasoning": leaf.report,
        }
