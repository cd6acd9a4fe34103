"""The formats ``messages``, conversations as chat APIs take them, and ``parallelmuse``.

The shape is that of ``functionality_specified_partial_rollout.py`` and ``compressed_reasoning_aggregation.py`` in
Alibaba-NLP/DeepResearch (WebAgent/ParallelMuse, arXiv 2510.24698).

The tags are those that Hermes and Qwen models are trained on; a chat template makes the same of native messages.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.llm.dialects.builtin import Hermes
from trunkline.store.export.target import Shape
from trunkline.tree.views import Kind
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trunkline._internal.text import JSON
    from trunkline.store.export.target import Leaf
    from trunkline.tree.views import Node
    from trunkline.types import Message, Task


CHAT_FIELDS: Final = {
    "messages": "the conversation from the first prompt to the leaf, in the OpenAI form, as it was sent",
    "tools": "definitions of the tools that the model was offered beside the messages; absent where there were none",
    "task": "the task's id",
    "rollout": "the number of the rollout in its tree",
    "path": "its fork path: turn, draw, turn, draw, ...",
    "weight": "how many rollouts the record stands for",
    "reward": "its reward; null while unscored",
    "answer": "its final answer, or null",
    "references": "the reference answers",
    "termination": "why it ended; null while it grows",
    "compressed_reasoning": "the report on it, or null",
    "step_rewards": "what the environment gave for each model turn on its path, or null; absent where it gave nothing",
    "final_info": "the facts that the environment left of its final state; absent where it left none",
}
"""The fields of a record, and what they are."""


def tools_of(settings: Mapping[str, JSON]) -> list[JSON]:
    """The tools that a run offered its model beside the messages; empty where none are known.

    Where tools are spoken about in the text, the messages say what they are. Roles of a team, and what a program asks,
    have tools of their own from turn to turn, so nothing is said of them.
    """
    agent = settings.get("agent")
    if not isinstance(agent, dict) or settings.get("team") is not None or settings.get("program") is not None:
        return []
    dialect, tools = agent.get("dialect"), agent.get("tools")
    native = isinstance(dialect, dict) and dialect.get("kind") == "native"
    return list(tools) if native and isinstance(tools, list) else []


class Chat(Shape):
    """Records of the format ``messages``."""

    fields = tuple(CHAT_FIELDS)

    def record(self, leaf: Leaf) -> dict[str, Any]:
        """Make the record of a leaf."""
        first, tools = leaf.first, tools_of(self.settings)
        return {
            "messages": leaf.asked if self.settings.get("external") else leaf.raw,
            **({"tools": tools} if tools else {}),
            "task": first.task.id,
            "rollout": first.id,
            "path": first.path,
            "weight": leaf.weight,
            "reward": leaf.reward,
            "answer": first.answer,
            "references": leaf.references,
            "termination": first.termination,
            "compressed_reasoning": leaf.report,
            **({} if leaf.step_rewards is None else {"step_rewards": leaf.step_rewards}),
            **({} if leaf.final_info is None else {"final_info": leaf.final_info}),
        }


_TAG: Final = re.compile(r"<(?=/?(?:think|tool_call|tool_response)>)")


def text_of(message: Message) -> str:
    """The text of a message's content; a part that is no text becomes its type in brackets: ``[image_url]``."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refusal = message.get("refusal")
        return refusal if isinstance(refusal, str) else ""
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        parts.append(text if isinstance(text, str) else f"[{part.get('type') if isinstance(part, dict) else 'part'}]")
    return "".join(parts)


def _call(call: JSON) -> str:
    function: Any = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    try:
        read: JSON = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        read = arguments
    said = msgspec.json.encode({"name": function.get("name"), "arguments": read}).decode()
    # In JSON a < stands in strings alone, so a tag that a model quotes can be written so that it is no tag.
    inside = _TAG.sub(r"\\u003c", said)
    return f"<tool_call>\n{inside}\n</tool_call>"


def _turn(node: Node, message: Message) -> str:
    said = text_of(message)
    calls = message.get("tool_calls")
    blocks = [_call(call) for call in calls] if isinstance(calls, list) else []
    thought = node.aside
    if thought:
        inside = _TAG.sub(r"<\\", thought).strip()
        blocks.insert(0, f"<think>\n{inside}\n</think>" + (f"\n\n{said}" if said else ""))
    elif said:
        blocks.insert(0, said)
    return "\n".join(blocks)


def transcript(
    nodes: Iterable[Node], tools: str = "", marks: Callable[[Node], dict[str, JSON]] | None = None
) -> list[Message]:
    r"""Write a path as messages of the roles system, user and assistant with text contents.

    Results of one turn's calls are one user message. A tag inside a block is escaped: ``<\/think>``
    in a thought or a result, ``\u003c/think>`` in the JSON of a call. What a model wrote into its visible text stays.
    """
    found: list[Message] = []
    results: list[str] = []
    for node in nodes:
        message = node.message
        role = message.get("role")
        if role == "tool":
            inside = _TAG.sub(r"<\\", text_of(message))
            results.append(f"<tool_response>\n{inside}\n</tool_response>")
            continue
        if results:
            found.append({"role": "user", "content": "\n".join(results)})
            results = []
        if role == "assistant":
            extra = marks(node) if marks is not None and node.kind is Kind.TURN else {}
            found.append({"role": role, "content": _turn(node, message), **extra})
        else:
            found.append({"role": "system" if role == "developer" else role, "content": text_of(message)})
    if results:
        found.append({"role": "user", "content": "\n".join(results)})
    if not tools or not found:
        return found
    if found[0]["role"] == "system":
        found[0]["content"] = f"{found[0]['content']}\n\n{tools}".strip()
    else:
        found.insert(0, {"role": "system", "content": tools})
    return found


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
"""ParallelMuse's word for a termination. Others are left out: its scripts resample rollouts with any other word."""

PARALLELMUSE_FIELDS: Final = {
    "question": "the text of the task's last user message",
    "answer": "the first reference answer; empty where there is none",
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
    "references": "all reference answers",
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
    """Perplexities of a turn; ParallelMuse writes -1 for a span without tokens and a turn without a call."""
    found = node.tree.core.node(node.id).perplexity
    if not any(map(math.isfinite, found)):
        # Their scripts resample any turn that has the field, so a turn of which nothing is known has none.
        return {}
    calls = bool(node.message.get("tool_calls")) or "<tool_call>" in node.text
    spans = zip(_SPANS, found, strict=True)
    return {"step_ppl": {name: value if calls and math.isfinite(value) else _UNKNOWN for name, value in spans}}


class ParallelMuse(Shape):
    """Records of the format ``parallelmuse``."""

    fields = tuple(PARALLELMUSE_FIELDS)

    @cached_property
    def _tools(self) -> str:
        return Hermes().prompt(tools_of(self.settings))

    def lacks(self, leaf: Leaf) -> str | None:
        """Why a leaf has no record in this format; None if it has one."""
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
