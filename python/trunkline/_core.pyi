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
    "Rollout",
    "Tokens",
    "Tree",
    "__version__",
    "estimate",
    "group_advantages",
    "node_values",
    "presets",
    "step_returns",
    "to_tokens",
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

def presets() -> dict[str, dict[str, str | float | bool]]:
    """Every estimator by name: where its values land (``lands``: ``rows`` or ``nodes``) and its options.

    A preset named after a framework does what that framework does; ``docs/design/estimators.md`` says where each comes
    from. Options:

    * ``scopes``: which rows are compared. Columns ``group``, ``subgroup``, ``agent``, ``anchor`` joined by ``+`` into a
      scope, or ``subtree`` (every node on the row's path); several scopes are separated by commas.
    * ``unit``: one observation is a ``row``, or a ``trajectory`` with the mean of its rows, which each of them gets.
    * ``centre``: ``mean`` is subtracted, or ``leave_one_out`` (the mean of the others), ``runner_up`` (the second
      best; all but the best get 0), ``none``.
    * ``scale``: what that is divided by: ``std`` of the group, ``batch_std`` of all rows, ``mean`` of the group (which
      must be positive), ``none``. ``ddof`` is 0 or 1, ``eps`` is added to a divisor, ``var_floor`` is the least
      variance.
    * ``singleton``: what a row alone in its group gets: ``raw`` (its reward), ``zero``, ``skip`` (nothing; its group is
      left out where scopes are combined), ``error``. ``subgroup_singleton``: the same in the second and later scopes,
      in subtrees below a root, and among steps of one anchor.
    * ``zero_variance``: groups of equal rewards count (``keep``), do not in the second and later scopes and in subtrees
      below a root (``drop_subgroups``), or never do (``drop``); their advantages are exactly 0 in any case.
    * ``combine``: ``sum``, ``mean`` or ``size_weighted`` mean of the scopes, or ``nested``: one after the other.
    * ``count_masked``: whether masked rows are in baselines.
    * ``whiten``: ``batch`` standardises over all tokens of kept rows, with ``sqrt(variance + 1e-8)``; or ``none``.
    * ``drop_zero``: rows or nodes with an advantage of exactly 0 are not kept.
    * ``gamma``, ``step_weight`` (GiGPO): discount of a step; weight of the part by steps.
    * ``margin`` (Tree-GRPO's node scores): what a node must gain before the gain counts.
    * ``damping`` (TreeRL): a node's sum is divided by the ``sqrt`` of the number of selected rollouts below, by that
      number (``uniform``), or not (``none``). ``signal``: ``local_plus_value``, ``local`` or ``value`` lands.
      ``fill``: a node that gains nothing takes the gain of its parent.
    * ``relative`` (TreePO's segments): leaves start with their size-weighted relative reward.
    """

def estimate(
    preset: str,
    rewards: Buffer | Sequence[float],
    *,
    group: Buffer | Sequence[int] | None = None,
    subgroup: Buffer | Sequence[int] | None = None,
    agent: Buffer | Sequence[int] | None = None,
    anchor: Buffer | Sequence[int] | None = None,
    trajectory: Buffer | Sequence[int] | None = None,
    step: Buffer | Sequence[int] | None = None,
    step_rewards: Buffer | Sequence[float] | None = None,
    masked: Buffer | Sequence[int] | None = None,
    selected: Buffer | Sequence[int] | None = None,
    tokens: Buffer | Sequence[int] | None = None,
    parents: Buffer | Sequence[int] | None = None,
    leaves: Buffer | Sequence[int] | None = None,
    **options: str | float | bool,
) -> tuple[memoryview, memoryview]:
    """Advantages by a preset, any of whose options may be changed.

    All columns have one element a row, but for ``parents``. A row is a rollout, or a step or turn of one.

    Args:
        preset: A key of :func:`presets`.
        rewards: Rewards (f64). NaN is unscored: it gives NaN and is in no baseline.
        group: The task (u32, any numbers). Left out: the root that the row's leaf is under.
        subgroup: The initial chain that a rollout was expanded for (u32).
        agent: Who acted (u32).
        anchor: What was seen before a step (u32): equal numbers for equal observations.
        trajectory: The rollout that a row is part of (u32).
        step: Number of the step (u32), never smaller than in an earlier row of the trajectory. Left out: every row is
            a step of its own.
        step_rewards: Reward of each step (f64); that of the first row of a step counts.
        masked: 1 (u8 or bool) for rows that train nothing. They get 0; whether they count in baselines is an option.
        selected: 1 (u8 or bool) for rollouts that will be trained on; left out: all.
        tokens: Trained tokens of each row (u32), for whitening; left out: one each.
        parents: Per node its parent (u32), smaller than the node; a root's is itself.
        leaves: Per row the node it ends at (u32).
        options: Options of the preset.

    Returns:
        Advantages (f64) of rows or nodes, whichever the preset lands on, NaN where nothing was scored; and 1 (u8) for
        those with something to train on.

    Raises:
        ArgumentError: Names the column, option, row or node that does not fit, and what there is instead.
    """

def group_advantages(
    rewards: Buffer | Sequence[float],
    scopes: Sequence[Sequence[Buffer | Sequence[int]]],
    *,
    trajectory: Buffer | Sequence[int] | None = None,
    masked: Buffer | Sequence[int] | None = None,
    tokens: Buffer | Sequence[int] | None = None,
    **options: str | float | bool,
) -> tuple[memoryview, memoryview]:
    """Advantages of rows relative to the groups they are in, over any columns of keys.

    Args:
        rewards: Rewards (f64), one a row; NaN is unscored.
        scopes: Per scope the columns (u32) that the rows of a group agree in.
        trajectory: As for :func:`estimate`, and so are the others.
        masked: Likewise.
        tokens: Likewise.
        options: As of :func:`presets` but for ``scopes``. Defaults: GRPO as verl has it (``std``, ``ddof=1``,
            ``eps=1e-6``), with 0 for a row that is alone.

    Returns:
        As of :func:`estimate`, one element a row.
    """

def node_values(
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    rewards: Buffer | Sequence[float],
    *,
    backup: str | None = None,
    visits: Buffer | Sequence[int] | None = None,
    gamma: float = 0.9,
) -> tuple[memoryview, memoryview, memoryview]:
    """V(s), V(s) - V(parent) and V(s) - V(root of its tree) of every node: three columns (f64), one element a node.

    NaN where nothing was scored; the differences are 0 at roots. With advantages of rollouts in the place of rewards,
    V(s) is what lands on a node that several of them share: their mean.

    Args:
        parents: Per node its parent (u32), smaller than the node; a root's is itself.
        leaves: Per rollout the node it ends at (u32).
        rewards: Per rollout its reward (f64); for ``discounted`` per node.
        backup: ``leaf_mean`` (the mean over rollouts that pass or end there; the default), ``child_mean`` (the mean
            over children; a rollout that ends there counts as a child), or ``discounted``:
            ``sum_c N_c (R_c - R_s + gamma V_c) / sum_c N_c`` over children c, the node's own reward where there are
            none.
        visits: N for ``discounted`` (u32), one a node; left out, the number of rollouts that pass.
        gamma: Discount for ``discounted``, 0 to 1.
    """

def step_returns(
    rewards: Buffer | Sequence[float],
    trajectory: Buffer | Sequence[int],
    *,
    step: Buffer | Sequence[int] | None = None,
    gamma: float = 0.95,
) -> memoryview:
    """``r + gamma * G(next step)`` of every row (f64) within its trajectory.

    Args:
        rewards: Reward of each row (f64); of rows with one step that of the first counts. NaN makes NaN of all returns
            before it.
        trajectory: The trajectory of each row (u32). Trajectories may be interleaved.
        step: Number of the step (u32), never smaller than in an earlier row of the trajectory. Left out: every row is
            a step of its own.
        gamma: Discount, 0 to 1.
    """

def to_tokens(
    values: Buffer | Sequence[float],
    offsets: Buffer | Sequence[int],
    *,
    kept: Buffer | Sequence[int] | None = None,
    mask: Buffer | Sequence[int] | None = None,
) -> tuple[memoryview, memoryview]:
    """Values of rows or nodes on their tokens (f64), and the mask (u8) of tokens with something to train on.

    What is masked, not kept or NaN gets 0 and 0, so that no NaN reaches a loss.

    Args:
        values: Values (f64).
        offsets: One element (u64) more than ``values``: tokens ``offsets[i]`` to ``offsets[i + 1]`` belong to value i.
        kept: 1 (u8 or bool) for values that are trained on; left out: all.
        mask: 1 (u8 or bool) for tokens that are trained on; left out: all.
    """
