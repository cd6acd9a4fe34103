"""Tree, Trajectory, Node over the core."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from trunkline import _core
from trunkline._internal.validation import check_choice
from trunkline.tree.answers import majority
from trunkline.tree.html import MOST_ROWS, number, table
from trunkline.tree.records import EnvironmentRecords, Failure, ToolDecision, usage_of, version_in
from trunkline.tree.tokens import Seconds, Tokens, count, generated
from trunkline.types import UNSCORED, Termination, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.types import Message, Task


class Kind(IntEnum):
    """What a node is."""

    ROOT = _core.ROOT
    PROMPT = _core.PROMPT
    TURN = _core.TURN
    OBSERVATION = _core.OBSERVATION
    MESSAGE = _core.MESSAGE


def message_text(message: Message) -> str:
    """Return a chat message's text, or its joined text parts; tool calls are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def message_calls(message: Message) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of each tool call in a chat message; arguments that are no text as JSON."""
    listed = message.get("tool_calls")
    calls = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    named = [(one.get("id", ""), one["function"]) for one in calls if isinstance(one.get("function"), dict)]
    return [(_as_text(own), _as_text(one.get("name", "")), _as_text(one.get("arguments"))) for own, one in named]


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class NodeTokens(NamedTuple):
    """Tokens of a node; the properties of ``Node`` say what the columns hold."""

    ids: memoryview | None = None
    logprobs: memoryview | None = None
    mask: memoryview | None = None
    weight_version: memoryview | None = None


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
        """The version of the weights that a model turn was asked under; None where unknown, and for other nodes."""
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

        With ids, those count that a fork inside a turn kept for it, which were not generated again.
        """
        return generated(self.tree.core, self.id) if self.kind is Kind.TURN else None

    @property
    def token_ids(self) -> memoryview | None:
        """Its token ids (u32, T), of a turn the sampled ones; None where they are not known.

        This and the columns beside it are buffers over memory of their own: ``numpy.asarray``, and ``torch.from_numpy``
        of that, copy nothing. ``tokens`` gives all four, as 64-bit integers too.
        """
        return self.tokens().ids

    @property
    def logprobs(self) -> memoryview | None:
        """Log-probabilities of its tokens in nats (f32, T): 0 where not sampled, NaN where not known; None as above."""
        return self.tokens().logprobs

    @property
    def mask(self) -> memoryview | None:
        """1 (u8, T) on tokens that the model sampled, 0 on all others; None as above."""
        return self.tokens().mask

    @property
    def weight_version(self) -> memoryview | None:
        """The weight version that sampled each token (i32, T); -1 where not sampled or not known; None as above."""
        return self.tokens().weight_version

    def tokens(self, dtype: Literal["i64"] | None = None) -> NodeTokens:
        """Return its tokens in columns of one length T; all are None where the node's token ids are not known.

        Args:
            dtype: ``i64`` makes integer columns 64 bits wide, as torch indexes with.

        Raises:
            ConfigError: There is no such dtype.
        """
        if dtype is not None:
            check_choice("dtype", dtype, "i64")
        tokens = self.tree.core.tokens_of(self.id)
        if tokens is None:
            return NodeTokens()
        mask = memoryview(
            bytearray(flags & (_core.SAMPLED | _core.SYNTHETIC) == _core.SAMPLED for flags in tokens.flags)
        )
        columns = (tokens.ids, tokens.logprobs, mask, tokens.versions)
        return NodeTokens(*(columns if dtype is None else map(_core.to_i64, columns)))

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
        """The report on the path to this node, or None; ``trunkline.aggregators.Reporter`` writes reports."""
        return self.tree.core.report_of(self.id)

    @property
    def text(self) -> str:
        """The message's text; tool calls are not in it."""
        return message_text(self.message)

    @property
    def visits(self) -> int:
        """How many rollouts pass through it; for many nodes ask ``Tree.values`` once."""
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


class Trajectory:
    """A rollout, as a view: the path of its leaf and how it ended.

    Args:
        tree: The tree it belongs to.
        id: The rollout's number in the tree.
    """

    __slots__ = ("id", "tree")

    def __init__(self, tree: Tree, id: int) -> None:
        if type(id) is not int or not 0 <= id < tree.core.rollouts:
            tree.core.rollout(id)  # says what is wrong
        self.id = id
        self.tree = tree

    @property
    def _facts(self) -> _core.RolloutView:
        # Read anew each time: a rollout grows.
        return self.tree.core.rollout(self.id)

    @property
    def task(self) -> Task:
        """The task it tries to solve."""
        return self.tree.task

    @property
    def point(self) -> Node:
        """The fork point it grew from."""
        return Node(self.tree, self._facts.point)

    @property
    def leaf(self) -> Node:
        """Its last node so far."""
        return Node(self.tree, self._facts.leaf)

    @property
    def nodes(self) -> list[Node]:
        """Every node from the first prompt to the leaf; the empty root is not among them."""
        return [Node(self.tree, node) for node in self.tree.core.path(self._facts.leaf)]

    @property
    def messages(self) -> list[Message]:
        """The conversation from the first prompt to the leaf."""
        return self.tree.messages(self._facts.leaf)

    @property
    def path(self) -> tuple[int, ...]:
        """Its fork path: turn, draw, turn, draw, and so on. It is unique in its tree."""
        return self._facts.path

    @property
    def draw(self) -> int:
        """Which sample of its fork point it is, from 0."""
        return self._facts.draw

    @property
    def subgroup(self) -> int:
        """The initial chain it was expanded for."""
        return self._facts.subgroup

    @property
    def termination(self) -> Termination | None:
        """Why it ended; None while it grows."""
        word = self._facts.termination
        return None if word is None else Termination(word)

    @property
    def answer(self) -> str | None:
        """Its final answer, if it gave one."""
        return self.tree.core.rollout(self.id).answer

    @property
    def error(self) -> Failure | None:
        """What went wrong, if something did; its message is safe to print."""
        text = self._facts.error
        return Failure.decode(text) if text else None

    @property
    def reward(self) -> float:
        """Its reward; NaN while unscored."""
        return self._facts.reward

    @property
    def note(self) -> str | None:
        """What was noted on it last, if anything was; see ``trunkline.filters``."""
        return self._facts.note

    @property
    def usage(self) -> Usage:
        """What its own calls cost, failed attempts too; those of its trunk belong to the rollouts that made them."""
        facts = self._facts
        return usage_of(facts.usage, facts.error)

    @property
    def seconds(self) -> Seconds:
        """Seconds its own calls took: model calls, tool calls."""
        facts = self._facts
        return Seconds(facts.llm_micros / 1e6, facts.tool_micros / 1e6)

    @property
    def turns(self) -> int:
        """Model turns on its path, shared ones included."""
        return self._facts.turns

    @property
    def step_rewards(self) -> list[float]:
        """What its environment gave for each turn on its path, shared ones included; NaN where nothing was given."""
        return EnvironmentRecords(self.tree.core).rewards(self.id)

    @property
    def tool_decisions(self) -> list[ToolDecision]:
        """The calls on its path that ``before_tool`` refused or changed, shared turns included."""
        return EnvironmentRecords(self.tree.core).decided(self.id)

    @property
    def final_info(self) -> dict[str, Any] | None:
        """The facts that its environment left of its final state; None where it left none."""
        return EnvironmentRecords(self.tree.core).info.get(self.id)

    @property
    def weights(self) -> list[str | None]:
        """Versions of the weights of the turns on its path, shared ones included: each once, from oldest to newest."""
        return list(dict.fromkeys(node.weights for node in self.nodes if node.kind is Kind.TURN))

    @property
    def generated(self) -> int | None:
        """Generated tokens on its path, shared ones included; None where a turn on it has neither ids nor usage."""
        turns = [node.generated_tokens for node in self.nodes if node.kind is Kind.TURN]
        counted = [count for count in turns if count is not None]
        return sum(counted) if len(counted) == len(turns) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectory) and other.id == self.id and other.tree.core is self.tree.core

    def __hash__(self) -> int:
        return hash((id(self.tree.core), self.id))

    def __repr__(self) -> str:
        ended = self.termination
        return f"<Trajectory {self.id} {'growing' if ended is None else ended.value}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: how it ended, and its conversation."""
        messages = self.messages
        rows = [(str(one.get("role", "")), _shown_message(one)) for one in messages[:MOST_ROWS]]
        return table(" · ".join(_ending(self)), rows, more=len(messages) - len(rows))


def _ending(rollout: Trajectory) -> Iterator[str]:
    ended, error = rollout.termination, rollout.error
    yield f"{rollout.task.id}: rollout {rollout.id}"
    yield "growing" if ended is None else ended.value
    yield f"{rollout.turns} turns"
    yield f"reward {number(rollout.reward)}"
    if rollout.answer is not None:
        yield f"answer {rollout.answer}"
    if error is not None:
        yield f"error {error.message}"


def _shown_message(message: Message) -> str:
    calls = message.get("tool_calls")
    named = (call.get("function") for call in calls if isinstance(call, dict)) if isinstance(calls, list) else ()
    said = (f"{one.get('name')}({one.get('arguments')})" for one in named if isinstance(one, dict))
    return "\n".join(filter(None, (message_text(message), *said)))


class Values(NamedTuple):
    """Columns with one entry for every node of a tree.

    Attributes:
        visits: Rollouts passing through the node.
        scored: The scored ones among them.
        means: V(s), their mean reward; NaN where none is scored.
    """

    visits: tuple[int, ...]
    scored: tuple[int, ...]
    means: tuple[float, ...]


class Tree:
    """A task and everything that was done for it.

    Nothing is kept here but the arguments: every read asks the native tree, so a view of a growing tree is never out
    of date.

    Args:
        task: The task.
        core: Its native tree; a new one when not given.
        ended: How its growth ended, as its run says: ``finished``, ``settled``, ``enough``, ``budget``, ``deadline`` or
            ``broken``; empty while it grows, and where unknown.
    """

    __slots__ = ("core", "ended", "task")

    def __init__(self, task: Task, core: _core.CoreTree | None = None, ended: str = "") -> None:
        self.core = _core.CoreTree() if core is None else core
        self.task = task
        self.ended = ended

    @property
    def root(self) -> Node:
        """The empty node that every prompt hangs under."""
        return Node(self, 0)

    def node(self, id: int) -> Node:
        """The node of that number; raises ``TreeError`` for an unknown number."""
        return Node(self, id)

    @property
    def nodes(self) -> list[Node]:
        """Every node, the root first; a parent comes before its children."""
        return [Node(self, number) for number in range(len(self.core))]

    @property
    def rollouts(self) -> list[Trajectory]:
        """Every rollout, in the order they were opened."""
        return [Trajectory(self, number) for number in range(self.core.rollouts)]

    @property
    def _facts(self) -> Iterator[_core.RolloutView]:
        return map(self.core.rollout, range(self.core.rollouts))

    def messages(self, node: Node | int) -> list[Message]:
        """The conversation from the root to a node."""
        number = node.id if isinstance(node, Node) else node
        return cast("list[dict[str, Any]]", msgspec.json.decode(self.core.messages(number)))

    def digest(self) -> str:
        """32 hex digits over what was said and decided, whatever the worker count, order and timing."""
        return self.core.digest()

    def values(self) -> Values:
        """Visits and mean rewards of all nodes, in one pass over the tree."""
        visits, scored, means = self.core.values()
        return Values(tuple(visits), tuple(scored), tuple(means))

    @property
    def tokens(self) -> Tokens:
        """Tokens, counted flat and as a tree."""
        return count(self.core)

    @property
    def usage(self) -> Usage:
        """What all calls of all rollouts cost."""
        return sum((usage_of(facts.usage, facts.error) for facts in self._facts), Usage())

    @property
    def answer(self) -> str | None:
        """What most rollouts answered, after normalisation; rollouts that broke or were cut do not vote.

        Aggregators (``trunkline.aggregate``) also join answers that are equal as numbers, as 1/2 and 0.5.
        """
        return majority(facts.answer for facts in self._facts if facts.termination not in UNSCORED)

    @property
    def reward(self) -> float:
        """The mean reward of the scored rollouts, NaN if there is none; what a value function says is no score."""
        rewards = (facts.reward for facts in self._facts if facts.termination not in UNSCORED)
        scored = [reward for reward in rewards if not math.isnan(reward)]
        return math.fsum(scored) / len(scored) if scored else math.nan

    def __len__(self) -> int:
        return len(self.core)

    def __repr__(self) -> str:
        return f"<Tree of {self.task.id!r}: {len(self.core)} nodes, {self.core.rollouts} rollouts>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the question, the vote, and a row for each rollout."""
        some = [Trajectory(self, number) for number in range(min(self.core.rollouts, MOST_ROWS))]
        rows = [
            (
                str(one.id),
                "growing" if one.termination is None else one.termination.value,
                str(one.turns),
                number(one.reward),
                one.answer or "",
                "" if one.error is None else one.error.message,
            )
            for one in some
        ]
        question = "\n".join(map(message_text, self.task.messages))
        title = f"{self.task.id} · answer {self.answer or '-'} · reward {number(self.reward)}"
        return table(title, [(question,)]) + table(
            f"{self.core.rollouts:,} rollouts, {len(self.core):,} nodes",
            rows,
            ("rollout", "ended", "turns", "reward", "answer", "error"),
            more=self.core.rollouts - len(rows),
        )
