"""The format ``parallelmuse``: records as ParallelMuse's scripts write and read them.

The shape is that of ``functionality_specified_partial_rollout.py`` and ``compressed_reasoning_aggregation.py`` in
Alibaba-NLP/DeepResearch (WebAgent/ParallelMuse, arXiv 2510.24698).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from trunkline.llm.dialects.hermes import Hermes
from trunkline.store.export.chat import tools_of
from trunkline.store.export.transcript import text_of, transcript
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.store.export.leaves import Leaf
    from trunkline.tree.node import Node
    from trunkline.types import JSON, Task

__all__ = ["FIELDS", "WORDS", "ParallelMuse"]

WORDS: Final = {
    Termination.ANSWER: "answer",
    Termination.MAX_TURNS: "max_turn_exceeded",
    Termination.TOOL_LIMIT: "max_turn_exceeded",
    Termination.MAX_TOKENS: "max_length_exceeded",
    Termination.MAX_CONTEXT: "max_length_exceeded",
    Termination.LLM_ERROR: "llm_error_occurred",
    Termination.BAD_REQUEST: "llm_error_occurred",
    Termination.CONTENT_FILTER: "llm_error_occurred",
}
"""Their word for why a rollout ended. What has none is left out: their scripts would take any other word for a rollout
that is fit to be resampled."""

FIELDS: Final = {
    "question": "the text of the task's last user message",
    "answer": "the first accepted answer; empty where there is none",
    "prediction": "the rollout's answer, or [No Prediction]; absent where a call failed for good",
    "rollout": "the conversation as text: thoughts, calls and results between tags",
    "termination": "why it ended, in their words",
    "prepand_msg": "the messages that the rollout began with, those of the one it was forked from included",
    "rollout_type": "traj_level_rollout from the prompt, partial_rollout from a later turn",
    "task": "the task's id (ours, as all that follow)",
    "rollout_id": "the number of the rollout in its tree",
    "path": "its fork path: turn, draw, turn, draw, ...",
    "weight": "how many rollouts the record stands for",
    "reward": "its reward; null while unscored",
    "references": "all accepted answers",
    "compressed_reasoning": "the report on it, or null",
}
"""The fields of a record, and what they are."""

_NOTHING: Final = "[No Prediction]"
_UNKNOWN: Final = -1
_SPANS: Final = ("think_ppl", "tool_call_ppl", "all_ppl")


def _question(task: Task) -> str:
    users = [message for message in task.messages if message.get("role") == "user"]
    return task.question or (text_of(users[-1]) if users else "")


def _marks(node: Node) -> dict[str, JSON]:
    """How unsure the model was in a turn; -1, their word, for a span without tokens and a turn without a call."""
    found = node.tree.core.node(node.id).perplexity
    if not any(map(math.isfinite, found)):
        # Their scripts resample any turn that has the field, so a turn of which nothing is known has none.
        return {}
    calls = bool(node.message.get("tool_calls")) or "<tool_call>" in node.text
    spans = zip(_SPANS, found, strict=True)
    return {"step_ppl": {name: value if calls and math.isfinite(value) else _UNKNOWN for name, value in spans}}


class ParallelMuse:
    """Makes records of this format.

    Args:
        settings: The settings of the run.
    """

    fields: Final = tuple(FIELDS)

    def __init__(self, settings: Mapping[str, JSON]) -> None:
        self._tools = Hermes().prompt(tools_of(settings))

    def lacks(self, leaf: Leaf) -> str | None:
        """Why a record cannot be had in this format, in a few words; None if it can."""
        ended = leaf.first.termination
        if ended in WORDS:
            return None
        return "still growing" if ended is None else f"{ended.value} has no counterpart"

    def record(self, leaf: Leaf) -> dict[str, Any]:
        """Make the record of a leaf that the format does not lack."""
        first = leaf.first
        point, ended = first.point, first.termination
        assert ended is not None
        nodes = first.nodes
        begun = len(first.tree.core.path(point.id))
        record: dict[str, Any] = {
            "question": _question(first.task),
            "answer": leaf.references[0] if leaf.references else "",
            "prediction": first.answer if (first.answer or "").strip() else _NOTHING,
            "rollout": transcript(nodes, self._tools, _marks),
            "termination": WORDS[ended],
            "prepand_msg": transcript(nodes[:begun], self._tools, _marks),
            "rollout_type": "partial_rollout" if point.turns else "traj_level_rollout",
            "task": first.task.id,
            "rollout_id": first.id,
            "path": first.path,
            "weight": leaf.weight,
            "reward": leaf.reward,
            "references": leaf.references,
            "compressed_reasoning": leaf.report,
        }
        if WORDS[ended] == "llm_error_occurred":
            del record["prediction"]
        return record
