"""The native core: the tree of one task, its lanes, request bodies and deltas.

Ids are unsigned 32-bit integers, stable for the life of a tree. Every failure raises a
:class:`trunkline.errors.CoreError` and changes nothing. A :class:`Tree` has one writer at a time; any thread
may use it.

Columns of numbers go in as anything with a one-dimensional buffer of the type that is named (numpy and torch
arrays, ``array.array``, ``memoryview``), or as a sequence where speed does not matter. They come out as read-only
``memoryview`` objects with a format: ``numpy.asarray(view)`` copies nothing.
"""

from collections.abc import Sequence
from typing import Final, final

from typing_extensions import Buffer

__all__ = [
    "DEBUG",
    "DIGEST_VERSION",
    "FORMAT",
    "GROWING",
    "MESSAGE",
    "OBSERVATION",
    "PROMPT",
    "ROOT",
    "SAMPLED",
    "SYNTHETIC",
    "TRUNCATED",
    "TURN",
    "Forest",
    "Harvest",
    "Lanes",
    "Node",
    "Rollout",
    "Tokens",
    "Tree",
    "__version__",
    "harvest",
]

__version__: Final[str]
DEBUG: Final[bool]

FORMAT: Final[int]
"""Version of the format of deltas: :meth:`Tree.apply` takes no other."""

DIGEST_VERSION: Final[int]
"""Version of :meth:`Tree.digest`: digests of two versions are never equal."""

GROWING: Final[int]
"""Stands in :attr:`Harvest.terminations` for a rollout that has not ended."""

ROOT: Final = 0
PROMPT: Final = 1
TURN: Final = 2
OBSERVATION: Final = 3
MESSAGE: Final = 4

SAMPLED: Final = 1
"""Flag of a token that the model sampled."""

SYNTHETIC: Final = 2
"""Flag of a token that nobody sampled and no text holds: put in by a template or a bridge between turns."""

TRUNCATED: Final = 4
"""Flag of the last token of what was cut off."""

@final
class Tree:
    """Everything done for one task: nodes (message-level events), rollouts (tries), and the bytes they share.

    Node 0 is the root, an empty node that every prompt hangs under. A node's parent always has a smaller id.
    Appending what is already there merges: the same parent, kind, agent, namespace, context and token ids give the
    same node, whatever its bytes, and the first message stays; without ids, the same bytes do. What comes with ids and
    what comes without never merge. An empty run of tokens counts as none. Rollouts never merge.

    A column of tokens with an infinite log-probability, a version below -1 or an unknown flag is refused
    (:class:`~trunkline.errors.ArgumentError`).
    """

    def __new__(cls) -> Tree: ...
    def name(self, text: str, /) -> int:
        """Intern a short string and return its id; 0 is ``""``.

        Agents, finish reasons, and namespaces (model, sampling and weight version) are named this way.
        """

    def append(self, parent: int, kind: int, message: Buffer, agent: int = 0, tokens: Tokens | None = None, /) -> int:
        """Append a message that no rollout owns (a prompt) and return its node.

        Args:
            parent: An existing node.
            kind: ``PROMPT`` or ``MESSAGE``.
            message: The message as it is sent: one JSON object in UTF-8.
            agent: Interned name of the agent or role.
            tokens: What the message is to the model, if that is known now; else see :meth:`tokenise`.
        """

    def open(self, point: int, path: Sequence[int], subgroup: int = 0, /) -> int:
        """Open a rollout at a fork point and return its id (0, 1, 2, ...).

        Args:
            point: The node the rollout grows from.
            path: The fork path, flattened: turn, draw, turn, draw, ... Unique in the tree; it orders the
                digest.
            subgroup: The initial chain this rollout was expanded for.
        """

    def turn(
        self,
        rollout: int,
        message: Buffer,
        agent: int,
        namespace: int,
        finish: int,
        prompt: int,
        cached: int,
        generated: int,
        retries: int,
        micros: int,
        aside: Buffer | None = None,
        context: int | None = None,
        tokens: Tokens | None = None,
        /,
    ) -> int:
        """Append a model turn at the rollout's leaf, move the leaf there, count its usage, return the node.

        Args:
            rollout: A growing rollout.
            message: The assistant message as it will be sent again.
            agent: Interned name.
            namespace: Interned model, sampling parameters and weight version: part of the merge key.
            finish: Interned finish reason.
            prompt: Prompt tokens the server reports, cached ones included; -1 where it reports none.
            cached: Of these, tokens it had cached; -1 where it reports none. Never counted beyond ``prompt``.
            generated: Completion tokens; -1 where not reported. A call that lacks ``prompt`` or ``generated``
                is counted as unreported and is in no total.
            retries: Attempts beyond the first.
            micros: Wall time of the call in microseconds; kept with the rollout, in no digest.
            aside: What the model said that is not sent again (its reasoning), in UTF-8.
            context: Id from :meth:`context` when what was sent is not the path; part of the merge key.
            tokens: What the model sampled, and how sure it was. Tokens are never added to a turn later.

        Where the turn merges, the message, tokens, figures, finish reason, aside and uncertainty of the first one
        stay; figures, an aside and an uncertainty that the first one lacked are filled in. The rollout's own usage
        is always counted.
        """

    def observe(
        self,
        rollout: int,
        message: Buffer,
        agent: int,
        micros: int,
        failed: bool = False,
        tokens: Tokens | None = None,
        /,
    ) -> int:
        """Append a tool observation at the rollout's leaf, move the leaf there, return the node.

        Counts one tool call, also where the node merges.

        Args:
            rollout: A growing rollout.
            message: The tool message as it is sent.
            agent: Interned name.
            micros: Wall time of the tool call in microseconds; kept with the rollout, in no digest.
            failed: Whether the call failed. Counted with the rollout, in no digest and no merge key: what the
                model was told says it already.
            tokens: What the message is to the model, if that is known now; else see :meth:`tokenise`.
        """

    def tokenise(self, node: int, tokens: Tokens, /) -> None:
        """Give a prompt, an observation or a message the tokens that a later reply reports for it, once.

        The node keeps its id and its merge key. An empty run says that the message has no tokens of its own. The same
        ids again change nothing.

        Args:
            node: A node that is no model turn.
            tokens: Its tokens; their uncertainty is not kept.

        Raises:
            ArgumentError: If the node is the root or a model turn, or has other ids already.
        """

    def close(self, rollout: int, termination: str, answer: str | None = None, error: str | None = None, /) -> None:
        """End a rollout for good. Raises if it has ended already: termination is monotone."""

    def score(self, rollout: int, reward: float, /) -> None:
        """Set the reward of an ended rollout; NaN means unscored."""

    def fragment(self, message: Buffer, /) -> int:
        """Intern a message without making a node of it; for :meth:`context`."""

    def context(self, fragments: Sequence[int], /) -> int:
        """Record an ordered list of fragments that was really sent, where it is not a path."""

    def request(self, node: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Join ``head``, the messages from the root to ``node`` separated by commas, and ``tail``.

        The body is made in one allocation.
        """

    def request_context(self, context: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Like :meth:`request`, over a recorded context."""

    def messages(self, node: int, /) -> bytes:
        """The messages from the root to ``node`` as one JSON array."""

    def path(self, node: int, /) -> list[int]:
        """Nodes from the root's child to ``node``, in order; empty for the root."""

    def children(self, node: int, /) -> list[int]:
        """Children of ``node`` in the order they were made."""

    def node(self, node: int, /) -> Node:
        """Read one node."""

    def message(self, node: int, /) -> bytes:
        """The node's message; empty for the root."""

    def aside(self, node: int, /) -> str | None:
        """What a model turn said beside its message, or None."""

    def tokens_of(self, node: int, /) -> Tokens | None:
        """A copy of the node's tokens, with a turn's uncertainty; None where they are not known."""

    def rollout(self, rollout: int, /) -> Rollout:
        """Read one rollout, as it is now."""

    @property
    def growing(self) -> list[int]:
        """Rollouts that have not ended, ascending."""

    @property
    def rollouts(self) -> int:
        """How many rollouts were opened."""

    def __len__(self) -> int:
        """How many nodes there are, the root included."""

    def tokens(self) -> tuple[int, int, int, int, int, int, bool]:
        """``(flat, tree, flat_generated, tree_generated, longest, unreported, exact)``.

        ``flat`` sums the tokens of every rollout's path, as if each were a chain of its own; ``tree`` counts
        what is shared once; both over prompt, observations and generation. ``longest`` is the longest path.
        flat >= tree >= longest.

        ``exact`` says that these are counts of token ids: every node that a rollout passes below the root has
        tokens, and every turn was asked with its path (no context). Then ``tree`` counts nodes that a rollout
        passes, what was generated is what has the flag ``SAMPLED``, and ``unreported`` is 0.

        Otherwise they come from the servers' usage figures. What is new in a turn's prompt is what exceeds the
        prompt and reply of the turn before it on the path; it is shared by all turns asked at one node.
        ``unreported`` is the number of model turns without usage, whose tokens are in no total.
        """

    def values(self) -> tuple[memoryview, memoryview, memoryview]:
        """What passes through every node, as three columns.

        Returns:
            Rollouts that pass or end there (u32), scored ones among them (u32), and V(s), the mean reward of
            the scored ones (f64, NaN where there are none).
        """

    def statistics(self) -> tuple[memoryview, memoryview, memoryview]:
        """What rollouts left on every node, as three columns that are kept up to date at every step.

        Returns:
            ``visits``, scored rollouts whose path holds the node (u32); ``value``, the sum of their rewards (f64,
            0 where there are none); ``passes``, rollouts that pass or end there, scored or not (u32).
            ``passes - visits`` is what is still in flight: the virtual loss of a tree search.
        """

    def memory(self) -> int:
        """Bytes that memory is held for: payload, bookkeeping, and what :meth:`reset` kept."""

    def reset(self) -> None:
        """Forget everything but the root and keep the memory for the next task; deltas start again at number 0."""

    def digest(self) -> str:
        """32 hex digits over all rollouts in order of fork path: messages, terminations, answers, rewards.

        Ids, times and usage are left out, so the digest is equal for any worker count and
        arrival order.
        """

    def delta(self) -> bytes | None:
        """What changed since the last call, as one record with checksum and number; None if nothing did."""

    def apply(self, delta: Buffer, /) -> bool:
        """Replay a delta of the same tree, whole or not at all. False if it was applied before.

        Afterwards this tree is the one that wrote the delta, ids included, and continues its deltas at the
        next number. Raises on a gap, damage, truncation, a delta of another tree or another history, and
        while this tree has changes of its own that :meth:`delta` has not taken.
        """

    def check(self) -> None:
        """Walk every invariant; raises TreeError naming the first that fails."""

@final
class Node:
    """One node, as it was when :meth:`Tree.node` read it."""

    @property
    def parent(self) -> int:
        """The node before it; the root is its own parent."""

    @property
    def kind(self) -> int:
        """``ROOT``, ``PROMPT``, ``TURN``, ``OBSERVATION`` or ``MESSAGE``."""

    @property
    def depth(self) -> int:
        """Nodes above it; 0 for the root."""

    @property
    def turns(self) -> int:
        """Model turns from the root to it, itself included."""

    @property
    def agent(self) -> str:
        """Agent or role; empty for none."""

    @property
    def namespace(self) -> str:
        """Model, sampling parameters and weight version of a model turn; else empty."""

    @property
    def finish(self) -> str:
        """Why the model stopped; empty for what is no model turn."""

    @property
    def prompt(self) -> int | None:
        """Prompt tokens of a model turn as the server reported them; None where it did not."""

    @property
    def generated(self) -> int | None:
        """Completion tokens of a model turn, likewise."""

    @property
    def context(self) -> int | None:
        """Id of what was sent where that is not the path, as :meth:`Tree.context` gave it; else None."""

    @property
    def entropy(self) -> tuple[float, float, float]:
        """Mean entropy of a turn's tokens in nats in the regions think, tool call and all; NaN where not known."""

    @property
    def perplexity(self) -> tuple[float, float, float]:
        """Exponential of :attr:`entropy`, as the reply gave it."""

    @property
    def visits(self) -> int:
        """Scored rollouts whose path holds it."""

    @property
    def value(self) -> float:
        """The sum of their rewards."""

    @property
    def passes(self) -> int:
        """Rollouts that pass or end here, scored or not."""

@final
class Rollout:
    """One rollout, as it was when :meth:`Tree.rollout` read it."""

    @property
    def point(self) -> int:
        """The node it grew from."""

    @property
    def leaf(self) -> int:
        """Its last node."""

    @property
    def path(self) -> tuple[int, ...]:
        """Its fork path, flattened: turn, draw, turn, draw, ..."""

    @property
    def draw(self) -> int:
        """Which sample of its fork point it is: the last number of its fork path, 0 if that is empty."""

    @property
    def lane(self) -> int | None:
        """Its lane while it grows, which is its id; None once it has ended."""

    @property
    def subgroup(self) -> int:
        """The initial chain it was expanded for."""

    @property
    def termination(self) -> str | None:
        """Why it ended; None while it grows."""

    @property
    def answer(self) -> str | None:
        """Its final answer."""

    @property
    def error(self) -> str | None:
        """What went wrong, as it was given to :meth:`Tree.close`."""

    @property
    def reward(self) -> float:
        """Its reward; NaN while unscored."""

    @property
    def usage(self) -> tuple[int, ...]:
        """What its own calls cost, in the order of :class:`trunkline.types.Usage`."""

    @property
    def turns(self) -> int:
        """Model turns from the root to its leaf, shared ones included."""

    @property
    def llm_micros(self) -> int:
        """Microseconds in its own model calls."""

    @property
    def tool_micros(self) -> int:
        """Microseconds in its own tool calls."""

@final
class Tokens:
    """A run of tokens in four columns of one length, and how sure the model was of them.

    Args:
        ids: Token ids (u32).
        logprobs: Log-probabilities (f32) in nats under the weights that sampled them; 0 where not sampled, NaN where
            not known. 0 everywhere if left out.
        versions: Weight version (i32) that sampled each; -1 where not sampled or not known, and if left out.
        flags: ``SAMPLED``, ``SYNTHETIC``, ``TRUNCATED`` (u8). If left out, ``SAMPLED`` where there are ``logprobs``,
            else 0.
    """

    def __new__(
        cls,
        ids: Buffer | Sequence[int],
        logprobs: Buffer | Sequence[float] | None = None,
        versions: Buffer | Sequence[int] | None = None,
        flags: Buffer | Sequence[int] | None = None,
    ) -> Tokens: ...
    @property
    def ids(self) -> memoryview: ...
    @property
    def logprobs(self) -> memoryview: ...
    @property
    def versions(self) -> memoryview: ...
    @property
    def flags(self) -> memoryview: ...
    @property
    def entropy(self) -> tuple[float, float, float]:
        """Mean entropy of a token in nats in the regions think, tool call and all; NaN where not known."""

    @property
    def perplexity(self) -> tuple[float, float, float]:
        """Exponential of :attr:`entropy`."""

    def __len__(self) -> int: ...

@final
class Forest:
    """The shape of trees side by side, with or without a :class:`Tree` behind it.

    Args:
        parents: Per node its parent (u32), a smaller number; a root is its own parent.
        leaves: Per rollout the node it ends at (u32).

    Raises:
        ArgumentError: Naming the first parent that is younger than its node, or the first leaf that does not exist.
    """

    def __new__(cls, parents: Buffer | Sequence[int], leaves: Buffer | Sequence[int], /) -> Forest: ...
    @property
    def parents(self) -> memoryview:
        """Per node its parent (u32)."""

    @property
    def leaves(self) -> memoryview:
        """Per rollout the node it ends at (u32)."""

    def depths(self) -> memoryview:
        """Per node how many nodes are above it (u32)."""

    def passes(self) -> memoryview:
        """Per node how many rollouts pass or end there (u32)."""

    def __len__(self) -> int:
        """How many nodes there are."""

def harvest(trees: Sequence[Tree], /) -> Harvest:
    """Put trees side by side, as they are now: what estimators, selection and packing are fed with.

    Args:
        trees: Any number of trees. Nodes and rollouts are numbered through, tree by tree.
    """

@final
class Harvest:
    """Columns over trees side by side. N nodes, R rollouts, T tokens."""

    @property
    def forest(self) -> Forest:
        """The shape: N nodes, R rollouts."""

    @property
    def parents(self) -> memoryview:
        """Per node its parent (u32, N); a root's is itself."""

    @property
    def kinds(self) -> memoryview:
        """Per node ``ROOT``, ``PROMPT``, ``TURN``, ``OBSERVATION`` or ``MESSAGE`` (u8, N)."""

    @property
    def agents(self) -> memoryview:
        """Per node who said it, as a position in :attr:`names` (u32, N)."""

    @property
    def names(self) -> list[str]:
        """Names of agents, common to all trees; the first is empty."""

    @property
    def offsets(self) -> memoryview:
        """Node n has the tokens ``offsets[n]`` to ``offsets[n + 1]`` (u64, N + 1); a node without any has none."""

    @property
    def ids(self) -> memoryview:
        """Token ids (u32, T)."""

    @property
    def logprobs(self) -> memoryview:
        """Log-probabilities in nats (f32, T); 0 where not sampled, NaN where not known."""

    @property
    def versions(self) -> memoryview:
        """Weight versions (i32, T); -1 where not sampled or not known."""

    @property
    def flags(self) -> memoryview:
        """``SAMPLED``, ``SYNTHETIC``, ``TRUNCATED`` (u8, T)."""

    @property
    def leaves(self) -> memoryview:
        """Per rollout the node it ends at, or has reached (u32, R)."""

    @property
    def rewards(self) -> memoryview:
        """Per rollout its reward (f64, R); NaN while unscored."""

    @property
    def groups(self) -> memoryview:
        """Per rollout the position of its tree (u32, R)."""

    @property
    def subgroups(self) -> memoryview:
        """Per rollout the initial chain it was expanded for, as its own tree numbers them (u32, R)."""

    @property
    def draws(self) -> memoryview:
        """Per rollout which sample of its fork point it is (u32, R)."""

    @property
    def terminations(self) -> memoryview:
        """Per rollout the position of its ending in :class:`trunkline.types.Termination`, or ``GROWING`` (u8, R)."""

@final
class Lanes:
    """A set of lanes 0..n-1 that can only shrink: termination is monotone."""

    def __new__(cls, n: int, /) -> Lanes: ...
    def finish(self, lane: int, /) -> None:
        """Take a lane out; raises if it is out already."""

    def active(self, lane: int, /) -> bool: ...
    def ones(self) -> list[int]:
        """Active lanes, ascending."""

    def and_(self, other: Lanes, /) -> Lanes:
        """Lanes active in both; raises if the sizes differ."""

    def and_not(self, other: Lanes, /) -> Lanes:
        """Lanes active here and not in ``other``."""

    def any(self) -> bool: ...
    def count(self) -> int: ...
    def __len__(self) -> int:
        """n, the number of lanes made."""
