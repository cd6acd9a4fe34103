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
    "MESSAGE",
    "OBSERVATION",
    "PROMPT",
    "ROOT",
    "SAMPLED",
    "SYNTHETIC",
    "TRUNCATED",
    "TURN",
    "Lanes",
    "Node",
    "Prefix",
    "PrefixMatch",
    "PrefixNode",
    "Reuse",
    "Rollout",
    "Tokens",
    "Tree",
    "__version__",
]

__version__: Final[str]
DEBUG: Final[bool]

FORMAT: Final[int]
"""Version of the format of deltas: :meth:`Tree.apply` takes no other."""

DIGEST_VERSION: Final[int]
"""Version of :meth:`Tree.digest`: digests of two versions are never equal."""

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
    Appending what is already there merges: the same parent, kind, agent, namespace and bytes give the same
    node. Rollouts never merge.
    """

    def __new__(cls) -> Tree: ...
    def name(self, text: str, /) -> int:
        """Intern a short string and return its id; 0 is ``""``.

        Agents, finish reasons, and namespaces (model, sampling and weight version) are named this way.
        """

    def append(self, parent: int, kind: int, message: Buffer, agent: int = 0, /) -> int:
        """Append a message that no rollout owns (a prompt) and return its node.

        Args:
            parent: An existing node.
            kind: ``PROMPT`` or ``MESSAGE``.
            message: The message as it is sent: one JSON object in UTF-8.
            agent: Interned name of the agent or role.
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

        Where the turn merges, the figures, the finish reason and the aside of the first one stay; figures and
        an aside that the first one lacked are filled in. The rollout's own usage is always counted.
        """

    def observe(self, rollout: int, message: Buffer, agent: int, micros: int, failed: bool = False, /) -> int:
        """Append a tool observation at the rollout's leaf, move the leaf there, return the node.

        Counts one tool call, also where the node merges.

        Args:
            rollout: A growing rollout.
            message: The tool message as it is sent.
            agent: Interned name.
            micros: Wall time of the tool call in microseconds; kept with the rollout, in no digest.
            failed: Whether the call failed. Counted with the rollout, in no digest and no merge key: what the
                model was told says it already.
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

    def tokens(self) -> tuple[int, int, int, int, int, int]:
        """``(flat, tree, flat_generated, tree_generated, longest, unreported)``.

        ``flat`` sums the tokens of every rollout's path, as if each were a chain of its own; ``tree`` counts
        what is shared once; both over prompt, observations and generation. ``longest`` is the longest path.
        What is new in a turn's prompt is what exceeds the prompt and reply of the turn before it on the path;
        it is shared by all turns asked at one node. ``unreported`` is the number of model turns without
        usage, whose tokens are in no total. flat >= tree >= longest.
        """

    def values(self) -> tuple[memoryview, memoryview, memoryview]:
        """What passes through every node, as three columns.

        Returns:
            Rollouts that pass or end there (u32), scored ones among them (u32), and V(s), the mean reward of
            the scored ones (f64, NaN where there are none).
        """

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
class Prefix:
    """An exact radix tree over token ids, which stores what token paths share once, in all four columns.

    A node is a run of tokens after its parent's. Where a path ends or leaves inside a run, a new node above takes the
    head and the old one keeps the tail: an id keeps its path for good, until :meth:`reset`. What is stored first stays:
    equal ids with other log-probabilities, versions or flags are the same tokens.

    Paths are counted: :meth:`insert` and :meth:`fork` add one, :meth:`append` moves one on; nothing takes one away.
    For n draws of a prompt, insert it once, fork its node n - 1 times, and append each draw.
    """

    def __new__(cls) -> Prefix: ...
    def space(self, name: str, /) -> int:
        """The id of the space of this name (0, 1, 2, ...), made if there is none.

        Paths of two spaces share nothing. A space is a model with its tokenizer and tools, or a task.
        """

    def insert(self, space: int, tokens: Tokens, /) -> int:
        """Count one path from the root of a space, store what of it is not there yet, and return the node it ends at.

        Raises:
            TreeError: There is no such space, or 32 bits do not suffice for the path, its nodes or their number.
        """

    def append(self, node: int, tokens: Tokens, /) -> int:
        """Move one path that ends at ``node`` on by some tokens, and return the node it ends at now.

        Costs as much as the tokens appended, however deep the node is.

        Raises:
            ArgumentError: No path ends there; :meth:`fork` makes one.
            TreeError: There is no such node, or as for :meth:`insert`.
        """

    def fork(self, node: int, /) -> None:
        """Count one more path from the root to the end of ``node``, as if it were inserted again.

        Raises:
            TreeError: There is no such node, or its space has 4,294,967,295 paths.
        """

    def match(self, space: int, ids: Buffer | Sequence[int], /) -> PrefixMatch:
        """Find the longest path of a space that ``ids`` (u32) start with. Changes nothing.

        Raises:
            TreeError: There is no such space.
        """

    def root(self, space: int, /) -> int:
        """The node that every path of a space starts at."""

    def node(self, node: int, /) -> PrefixNode:
        """Read one node."""

    def span(self, node: int, /) -> Tokens:
        """The tokens that are a node's own, as they were stored first."""

    def path(self, node: int, /) -> Tokens:
        """The tokens from the root to the end of a node, as they were stored first."""

    def reuse(self, space: int | None = None, /) -> Reuse:
        """What sharing saves in one space, or in all of them: exact at any time, and kept, not computed."""

    @property
    def memory(self) -> int:
        """Bytes that memory is held for."""

    def reset(self) -> None:
        """Forget everything, spaces included, and keep the memory for what comes next. All ids are void."""

    def check(self) -> None:
        """Walk every invariant; raises TreeError naming the first that fails."""

    def __len__(self) -> int:
        """How many nodes there are, the roots of spaces included."""

@final
class PrefixMatch:
    """How far some ids are in a :class:`Prefix`."""

    @property
    def node(self) -> int:
        """The last node of which something matches; the root where nothing does."""

    @property
    def matched(self) -> int:
        """How many of the ids match in all."""

    @property
    def offset(self) -> int:
        """How many tokens of ``node`` match: all of them, unless the ids leave it or end before its end."""

@final
class PrefixNode:
    """One node of a :class:`Prefix`, as it was when it was read."""

    @property
    def parent(self) -> int:
        """The node before it; a root is its own. A split gives a node another parent, with a larger id."""

    @property
    def space(self) -> int:
        """The space it is in."""

    @property
    def len(self) -> int:
        """How many tokens are its own; 0 for a root only."""

    @property
    def depth(self) -> int:
        """Tokens from the root to its end."""

    @property
    def generated(self) -> int:
        """Of its own tokens, those that were sampled."""

    @property
    def passes(self) -> int:
        """Paths that go through it or end there."""

    @property
    def ends(self) -> int:
        """Paths that end there."""

@final
class Reuse:
    """What sharing saves, in tokens. flat >= unique >= longest, always.

    A token was generated if it was stored with the flag ``SAMPLED``.
    """

    @property
    def paths(self) -> int:
        """Paths counted: inserted or forked."""

    @property
    def flat(self) -> int:
        """Tokens of every path, as if each were stored for itself."""

    @property
    def unique(self) -> int:
        """Tokens stored."""

    @property
    def flat_generated(self) -> int:
        """Of ``flat``, those that were generated."""

    @property
    def unique_generated(self) -> int:
        """Of ``unique``, those that were generated."""

    @property
    def longest(self) -> int:
        """Tokens of the longest path."""

    @property
    def ratio(self) -> float:
        """Share of ``flat`` that did not have to be stored, 1 - unique / flat; 0 where nothing is."""

    @property
    def ideal(self) -> float:
        """``flat / unique``, the most that work proportional to tokens can gain; 1 where nothing is stored."""

    @property
    def ideal_generated(self) -> float:
        """The same of generated tokens only, which is what decoding costs."""

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
