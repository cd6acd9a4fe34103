"""One node of a tree: a message-level event."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Any, cast

import msgspec

from trunkline import _core
from trunkline.tree.tokens import generated
from trunkline.tree.weights import version_in

if TYPE_CHECKING:
    from trunkline.tree.tree import Tree
    from trunkline.types import Message

__all__ = ["Kind", "Node", "message_text"]


class Kind(IntEnum):
    """What a node is."""

    ROOT = _core.ROOT
    PROMPT = _core.PROMPT
    TURN = _core.TURN
    OBSERVATION = _core.OBSERVATION
    MESSAGE = _core.MESSAGE


def message_text(message: Message) -> str:
    """The text of a chat message: its content, or the text parts of it joined; tool calls are not in it."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


class Node:
    """A node of a tree, as a view: reading it asks the native tree.

    Args:
        tree: The tree it belongs to.
        id: Its number in the tree; 0 is the root.
    """

    __slots__ = ("_facts", "id", "tree")

    def __init__(self, tree: Tree, id: int) -> None:
        # What is read here is fixed when the node is made (ids are stable, a parent never changes).
        self._facts = tree.core.node(id)
        self.id = id
        self.tree = tree

    @property
    def parent(self) -> Node | None:
        """The node before it; None for the root."""
        return None if self.id == 0 else Node(self.tree, self._facts.parent)

    @property
    def children(self) -> list[Node]:
        """The nodes after it, in the order they were made."""
        return [Node(self.tree, child) for child in self.tree.core.children(self.id)]

    @property
    def kind(self) -> Kind:
        """What it is: root, prompt, model turn, observation, or message between agents."""
        return Kind(self._facts.kind)

    @property
    def depth(self) -> int:
        """How many nodes lie between it and the root, itself included; 0 for the root."""
        return self._facts.depth

    @property
    def turns(self) -> int:
        """Model turns from the root to it, itself included."""
        return self._facts.turns

    @property
    def agent(self) -> str:
        """The agent or role it belongs to; empty for none."""
        return self._facts.agent

    @property
    def namespace(self) -> str:
        """Model, sampling parameters and weight version of a model turn; empty for other nodes."""
        return self._facts.namespace

    @property
    def weights(self) -> str | None:
        """The version of the weights that a model turn was asked under; None where nobody said, and for other nodes."""
        return version_in(self._facts.namespace)

    @property
    def finish(self) -> str:
        """Why the model stopped, in the server's word; empty for nodes that are no model turn."""
        return self._facts.finish

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens the server reported for a model turn, or None."""
        return self._facts.prompt

    @property
    def generated_tokens(self) -> int | None:
        """Tokens of a model turn, by its ids or else as the server reported them; None where neither is known.

        With ids, those count that a fork inside a turn kept for it, which nobody generated again.
        """
        return generated(self.tree.core, self.id) if self.kind is Kind.TURN else None

    @property
    def message(self) -> Message:
        """The message as it is sent; empty for the root."""
        raw = self.tree.core.message(self.id)
        return cast("dict[str, Any]", msgspec.json.decode(raw)) if raw else {}

    @property
    def aside(self) -> str | None:
        """What a model turn said that is not sent again, such as its reasoning."""
        return self.tree.core.aside(self.id)

    @property
    def compressed_reasoning(self) -> str | None:
        """What the path to this node came to, in a few words: a report somebody wrote, or None.

        :class:`trunkline.Reporter` writes reports.
        """
        return self.tree.core.report_of(self.id)

    @property
    def text(self) -> str:
        """The message's text; tool calls are not in it."""
        return message_text(self.message)

    @property
    def visits(self) -> int:
        """How many rollouts pass through it; for many nodes ask :meth:`Tree.values` once."""
        return self.tree.core.node(self.id).passes

    @property
    def value(self) -> float:
        """V(s), the mean reward of the scored rollouts through it; NaN where none is scored."""
        facts = self.tree.core.node(self.id)
        return facts.value / facts.visits if facts.visits else math.nan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.id == self.id and other.tree.core is self.tree.core

    def __hash__(self) -> int:
        return hash((id(self.tree.core), self.id))

    def __repr__(self) -> str:
        return f"<Node {self.id} {self.kind.name.lower()}>"
