"""The native core: the tree of one task, its lanes, request bodies and deltas.

Ids are unsigned 32-bit integers, stable for the life of a tree. Every failure raises a
:class:`trunkline.errors.CoreError` and changes nothing. A :class:`CoreTree` has one writer at a time; any thread
may use it.

Columns of numbers go in as anything with a one-dimensional buffer of the type that is named, in the byte order of this
machine (numpy arrays, a torch tensor's ``numpy()``, ``array.array``, ``memoryview``; bools for u8), or as a sequence
where speed does not matter. They are copied. They come out as read-only ``memoryview`` objects with a format:
``numpy.asarray(view)`` copies nothing.
"""

from collections.abc import Sequence
from typing import Final, Literal, final

from typing_extensions import Buffer

__all__ = [
    "CURRENCIES",
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
    "ActivityCounter",
    "CoreTree",
    "Harvest",
    "LanePlan",
    "LaneQueue",
    "Lanes",
    "Ledger",
    "NodeView",
    "Padded",
    "ParsedChoice",
    "ParsedReply",
    "PendingReply",
    "Prefix",
    "PrefixColumns",
    "PrefixMatch",
    "PrefixNode",
    "Ragged",
    "Refusal",
    "RefusedStart",
    "ReplyOptions",
    "Reuse",
    "RolloutView",
    "Scheduler",
    "Search",
    "Start",
    "Tally",
    "TokenBuffer",
    "Transcript",
    "TreePacked",
    "__version__",
    "align_ids",
    "append_ids_reply",
    "append_reply",
    "branch_probability",
    "branch_rows",
    "choose_leaves",
    "draw_points",
    "drift",
    "drift_of",
    "estimate",
    "fork_points",
    "give_ids",
    "group_advantages",
    "harvest",
    "initial_chains",
    "last_ids",
    "node_values",
    "pack_padded",
    "pack_ragged",
    "pack_tree",
    "parse_reply",
    "partial_top_up",
    "presets",
    "read_reply",
    "request_ids",
    "settle_ids",
    "split_evenly",
    "step_forest",
    "step_returns",
    "surprising_tokens",
    "to_nodes",
    "to_tokens",
    "top_turns",
    "tree_leaves",
    "tree_ratio",
    "tree_steps",
]

__version__: Final[str]

DEBUG: Final[bool]

FORMAT: Final[int]
"""Version of the format of deltas: :meth:`CoreTree.apply` takes no other."""

DIGEST_VERSION: Final[int]
"""Version of :meth:`CoreTree.digest`: digests of two versions are never equal."""

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

CURRENCIES: Final[tuple[str, ...]]
"""What budgets count: ``rollouts``, ``calls``, ``prompt`` and ``generated`` tokens, ``tokens`` of both kinds, ``tools``
(tool calls), ``micros`` (microseconds), ``micro_dollars`` (millionths of a dollar)."""

@final
class CoreTree:
    """Everything done for one task: nodes (message-level events), rollouts (tries), and the bytes they share.

    Node 0 is the root, an empty node that every prompt hangs under. A node's parent always has a smaller id.
    Appending what is already there merges: the same parent, kind, agent, namespace, context and token ids give the
    same node, whatever its bytes, and the first message stays; without ids, the same bytes do. What comes with ids and
    what comes without never merge. An empty run of tokens counts as none. Rollouts never merge.

    A column of tokens with an infinite log-probability, a version below -1 or an unknown flag is refused
    (:class:`~trunkline.errors.ArgumentError`).
    """

    def __new__(cls) -> CoreTree: ...
    def name(self, text: str, /) -> int:
        """Intern a short string and return its id; 0 is ``""``.

        Agents, finish reasons, and namespaces (model, sampling and weight version) are named this way.
        """

    def append(
        self, parent: int, kind: int, message: Buffer, agent: int = 0, tokens: TokenBuffer | None = None, /
    ) -> int:
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
        tokens: TokenBuffer | None = None,
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

        Where the turn merges, the message and the token ids stay. Each figure, the finish reason, the aside, and
        log-probabilities with their uncertainty are those of the rollout that was opened first of those that have any,
        in any order of arrival. The rollout's own usage is always counted.
        """

    def observe(
        self,
        rollout: int,
        message: Buffer,
        agent: int,
        micros: int,
        failed: bool = False,
        tokens: TokenBuffer | None = None,
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

    def tell(self, rollout: int, message: Buffer, agent: int, tokens: TokenBuffer | None = None, /) -> int:
        """Append a message that neither the model nor a tool said at the rollout's leaf, and move the leaf there.

        Nothing is counted.

        Args:
            rollout: A growing rollout.
            message: The message as it is sent.
            agent: Interned name of who it is from.
            tokens: What the message is to the model, if that is known now; else see :meth:`tokenise`.

        Returns:
            The node, a ``MESSAGE``.
        """

    def tokenise(self, node: int, tokens: TokenBuffer, /) -> None:
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

    def note(self, rollout: int, text: str, /) -> None:
        """Write a note on a rollout, ended or not, in the place of the one before; "" takes it away.

        It is in every delta and in no digest.
        """

    def mark(self, text: str, /) -> None:
        """Write down something that whoever grows the tree must know to go on with it elsewhere.

        It is in every delta, behind whatever was done before it, and in no digest.
        """

    def marks(self, first: int = 0, /) -> list[str]:
        """The marks in the order in which they were written, from number ``first`` on."""

    def state(self, node: int, /) -> tuple[list[int], int, int, int | None]:
        """``(path, turn, draw, subgroup)`` of the state at a node, for a fork there.

        A node is a state if a model turn follows it on the path of a rollout, if it is where a rollout stands that
        grows or was cut off (``censored``, ``cancelled``), if it ends the prompt, or if it is a ``MESSAGE`` put in
        behind a state. So a turn of a program is one where nothing was observed before the next. The path is that of
        the rollout that came there first, in the order they were opened, and empty before the first turn. ``draw`` is
        the next that nobody has taken: the first one of a state after a turn belongs to the rollout that came there.
        The subgroup is that rollout's, None before the first turn.

        Raises:
            TreeError: There is no such node, or it is no state: nothing forks after what ended a rollout.
        """

    def fragment(self, message: Buffer, /) -> int:
        r"""Intern a message, or a piece of one, without making a node of it; for :meth:`context`.

        A piece begins with a byte that is stored and never sent. ``b"\x02"`` opens a message, so ``{`` follows it;
        ``b"\x01"`` goes on with the message that the fragment before it belongs to. Together they are one JSON object,
        cut anywhere between two characters. A piece is UTF-8 without control characters.

        Raises:
            TreeError: It is neither a message nor a piece of one.
        """

    def context(self, fragments: Sequence[int], /) -> int:
        """Record an ordered list of fragments that was really sent, where it is not a path.

        An opening piece and the pieces behind it are one message. Digests depend on the messages alone; nodes merge
        where they were asked with equal lists, cut in the same way.

        Raises:
            TreeError: A fragment does not exist, or pieces make no message: one goes on where none was opened, or the
                last one does not end with ``}``.
        """

    def request(self, node: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Join ``head``, the messages from the root to ``node`` separated by commas, and ``tail``.

        The body is made in one allocation.
        """

    def continuation(self, after: int, node: int, /) -> bytes:
        """What to append to the messages from the root to ``after`` so that they reach to ``node``.

        Each message stands behind a comma, but for the first of all. A conversation that is kept in such pieces is
        never joined again: a turn costs what is new in it.

        Raises:
            ArgumentError: ``after`` is not on the path to ``node``.
        """

    def request_context(self, context: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Like :meth:`request`, over a recorded context of messages, whose pieces are joined."""

    def messages(self, node: int, /) -> bytes:
        """The messages from the root to ``node`` as one JSON array."""

    def path(self, node: int, /) -> list[int]:
        """Nodes from the root's child to ``node``, in order; empty for the root."""

    def children(self, node: int, /) -> list[int]:
        """Children of ``node`` in the order they were made."""

    def node(self, node: int, /) -> NodeView:
        """Read one node."""

    def message(self, node: int, /) -> bytes:
        """The node's message; empty for the root."""

    def aside(self, node: int, /) -> str | None:
        """What a model turn said beside its message, or None."""

    def report(self, node: int, text: str, /) -> None:
        """Write down what the path to a node came to, in the place of the report before; "" takes it away.

        It is in every delta and in no digest: it is made of what the digest covers and may be written long after.

        Raises:
            ArgumentError: If it is the root.
            TreeError: If there is no such node.
        """

    def report_of(self, node: int, /) -> str | None:
        """What was reported on a node last, or None."""

    def tokens_of(self, node: int, /) -> TokenBuffer | None:
        """A copy of the node's tokens, with a turn's uncertainty; None where they are not known."""

    def rollout(self, rollout: int, /) -> RolloutView:
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

    def shape(self) -> tuple[memoryview, memoryview, memoryview]:
        """The shape of the tree, as three columns; what :func:`fork_points` and :class:`Search` are fed with.

        Returns:
            Parent of every node (u32; the root's is itself), kind of every node (u8), and the last node of every
            rollout, in the order they were opened (u32).
        """

    def statistics(self) -> tuple[memoryview, memoryview, memoryview]:
        """What rollouts left on every node, as three columns that are kept up to date at every step.

        Returns:
            ``visits``, scored rollouts whose path holds the node (u32); ``value``, the sum of their rewards (f64,
            0 where there are none); ``passes``, rollouts that pass or end there, scored or not (u32).
            ``passes - visits`` is what has no reward: still in flight (the virtual loss of a tree search), or failed.
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
class NodeView:
    """One node, as it was when :meth:`CoreTree.node` read it."""

    parent: Final[int]
    """The node before it; the root is its own parent."""
    kind: Final[int]
    """``ROOT``, ``PROMPT``, ``TURN``, ``OBSERVATION`` or ``MESSAGE``."""
    depth: Final[int]
    """Nodes above it; 0 for the root."""
    turns: Final[int]
    """Model turns from the root to it, itself included."""
    agent: Final[str]
    """Agent or role; empty for none."""
    namespace: Final[str]
    """Model, sampling parameters and weight version of a model turn; else empty."""
    finish: Final[str]
    """Why the model stopped; empty for what is no model turn."""
    prompt: Final[int | None]
    """Prompt tokens of a model turn as the server reported them; None where it did not."""
    generated: Final[int | None]
    """Completion tokens of a model turn, likewise."""
    context: Final[int | None]
    """Id of what was sent where that is not the path, as :meth:`CoreTree.context` gave it; else None."""
    entropy: Final[tuple[float, float, float]]
    """Mean entropy of a turn's tokens in nats in the regions think, tool call and all; NaN where not known."""
    perplexity: Final[tuple[float, float, float]]
    """Exponential of :attr:`entropy`, as the reply gave it."""
    opening: Final[float]
    """What :meth:`arpo` divides: a sum of entropies in nats; NaN where not known."""
    def arpo(self, vocabulary: int, /) -> float:
        """ARPO's uncertainty of a turn, see :meth:`ParsedChoice.arpo`; NaN if not known or for less than two tokens."""

    visits: Final[int]
    """Scored rollouts whose path holds it."""
    value: Final[float]
    """The sum of their rewards."""
    passes: Final[int]
    """Rollouts that pass or end here, scored or not."""

@final
class RolloutView:
    """One rollout, as it was when :meth:`CoreTree.rollout` read it."""

    point: Final[int]
    """The node it grew from."""
    leaf: Final[int]
    """Its last node."""
    path: Final[tuple[int, ...]]
    """Its fork path, flattened: turn, draw, turn, draw, ..."""
    draw: Final[int]
    """Which sample of its fork point it is: the last number of its fork path, 0 if that is empty."""
    lane: Final[int | None]
    """Its lane while it grows, which is its id; None once it has ended."""
    subgroup: Final[int]
    """The initial chain it was expanded for."""
    termination: Final[str | None]
    """Why it ended; None while it grows."""
    answer: Final[str | None]
    """Its final answer."""
    error: Final[str | None]
    """What went wrong, as it was given to :meth:`CoreTree.close`."""
    reward: Final[float]
    """Its reward; NaN while unscored."""
    note: Final[str | None]
    """What was noted on it last."""
    usage: Final[tuple[int, ...]]
    """What its own calls cost, in the order of :class:`trunkline.types.Usage`."""
    turns: Final[int]
    """Model turns from the root to its leaf, shared ones included."""
    llm_micros: Final[int]
    """Microseconds in its own model calls."""
    tool_micros: Final[int]
    """Microseconds in its own tool calls."""

@final
class TokenBuffer:
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
    ) -> TokenBuffer: ...
    ids: Final[memoryview]
    logprobs: Final[memoryview]
    versions: Final[memoryview]
    flags: Final[memoryview]
    entropy: Final[tuple[float, float, float]]
    """Mean entropy of a token in nats in the regions think, tool call and all; NaN where not known."""
    perplexity: Final[tuple[float, float, float]]
    """Exponential of :attr:`entropy`."""
    def __len__(self) -> int: ...

@final
class Harvest:
    """Columns over trees side by side. N nodes, R rollouts, T tokens. ``parents`` and ``leaves`` are the shape."""

    parents: Final[memoryview]
    """Per node what its tokens come after (u32, N): its parent, or where a turn's prompt drifted, what is left.

    A root's is itself. A drifted turn (:func:`drift`) has before its own tokens what the model was given in the
    place of its path. Where it forked it hangs below the root and has the whole prompt, none of it trained.
    """
    kinds: Final[memoryview]
    """Per node ``ROOT``, ``PROMPT``, ``TURN``, ``OBSERVATION`` or ``MESSAGE`` (u8, N)."""
    agents: Final[memoryview]
    """Per node who said it, as a position in :attr:`names` (u32, N)."""
    names: Final[list[str]]
    """Names of agents, common to all trees; the first is empty."""
    offsets: Final[memoryview]
    """Node n has the tokens ``offsets[n]`` to ``offsets[n + 1]`` (u64, N + 1); a node without any has none."""
    ids: Final[memoryview]
    """Token ids (u32, T)."""
    logprobs: Final[memoryview]
    """Log-probabilities in nats (f32, T); 0 where not sampled, NaN where not known."""
    versions: Final[memoryview]
    """Weight versions (i32, T); -1 where not sampled or not known."""
    flags: Final[memoryview]
    """``SAMPLED``, ``SYNTHETIC``, ``TRUNCATED`` (u8, T)."""
    leaves: Final[memoryview]
    """Per rollout the node it ends at, or has reached (u32, R)."""
    rewards: Final[memoryview]
    """Per rollout its reward (f64, R); NaN while unscored."""
    groups: Final[memoryview]
    """Per rollout the position of its tree (u32, R)."""
    subgroups: Final[memoryview]
    """Per rollout the initial chain it was expanded for, as its own tree numbers them (u32, R)."""
    draws: Final[memoryview]
    """Per rollout which sample of its fork point it is (u32, R)."""
    terminations: Final[memoryview]
    """Per rollout the position of its ending in :class:`trunkline.types.Termination`, or ``GROWING`` (u8, R)."""
    segment_leaves: Final[memoryview]
    """Samples that end before their rollout does, because a drifted prompt forked there: the node where (u32, S).

    Packed beside :attr:`leaves`, with the values of :attr:`segment_rollouts`, everything sampled is trained.
    """
    segment_rollouts: Final[memoryview]
    """Per such sample its rollout (u32, S)."""

@final
class PendingReply:
    """A reply that was read and can be a turn, on no tree yet.

    Args:
        content: The visible text.
        reasoning: Thinking beside the text.
        calls: Tool calls as (id, name, arguments).
        finish: Why the model stopped.
        prompt: Prompt tokens; -1 where that is not known, as below.
        cached: Of these, cached ones.
        generated: Completion tokens.
    """

    def __new__(
        cls,
        content: str,
        reasoning: str | None,
        calls: Sequence[tuple[str, str, str]],
        finish: str,
        prompt: int,
        cached: int,
        generated: int,
        /,
    ) -> PendingReply: ...
    def append_turn(
        self,
        tree: CoreTree,
        rollout: int,
        agent: str,
        namespace: str,
        sent: int | None,
        retries: int,
        micros: int,
        nth: int,
        asked: int,
        leaf: int,
        context: int | None,
        how: int,
        note: Buffer | None,
        alone: bool,
        /,
    ) -> tuple[int, int, int, bool, int | None, int | None]:
        """Append the first choice as a rollout's next turn, and as a mark the record of the program that asked for it.

        Args:
            tree: The tree.
            rollout: A growing rollout.
            agent: Who spoke, which is the record's key.
            namespace: Model, sampling parameters and weight version: part of the merge key.
            sent: Id from :meth:`CoreTree.context` when what was sent is not the path.
            retries: Attempts beyond the first.
            micros: Wall time of the call in microseconds.
            nth: Turns of the same agent that the program had asked for before.
            asked: Turns of any that it had asked for before.
            leaf: Where its path ended when it asked.
            context: What it asked to be sent; None for its path.
            how: Interned model and sampling parameters that it asked with.
            note: What it noted of the reply, as JSON.
            alone: Whether nothing else was under way.

        Returns:
            ``(node, size, turns, first, prompt, generated)``: the node of the turn, the bytes of its message, the model
            turns up to it, itself included, whether no other turn said the same there before, and the tokens of prompt
            and completion as they were first reported there.

        Raises:
            ArgumentError: The reply cannot be a turn, or the rollout has ended.
            TreeError: An id names nothing.
        """

def parse_reply(
    options: ReplyOptions, data: Buffer, turn: int, /
) -> tuple[
    PendingReply,
    tuple[list[tuple[str, str | None, list[tuple[str, str, str]], str, int, int, str]], int, int, int, str, int],
]:
    """Read the body of a completion whose first choice is to be a turn later.

    Args:
        options: How to read the body.
        data: The body as received.
        turn: Model turns before that one.

    Returns:
        The reply, and what :func:`append_reply` returns of its first choice, whose node is 0.

    Raises:
        ReplyError: The bytes are no chat completion.
    """

def harvest(trees: Sequence[CoreTree], /) -> Harvest:
    """Put trees side by side, as they are now: what estimators, selection and packing are fed with.

    Args:
        trees: Any number of trees. Nodes and rollouts are numbered through, tree by tree.

    Raises:
        ArgumentError: A tree has more than 1048576 tokens side by side and more than 256 for each that it stores,
            because nodes or drifted prompts repeat the same tokens; or as many samples that end where a prompt forked.
    """

@final
class Lanes:
    """A set of lanes 0..n-1 that can only shrink: termination is monotone.

    A lane that does not exist or is out already, and sets of different sizes, are an ``ArgumentError``.
    """

    def __new__(cls, n: int, /) -> Lanes: ...
    def finish(self, lane: int, /) -> None:
        """Take a lane out; raises if it is out already."""

    def finish_all(self, lanes: Buffer | Sequence[int], /) -> None:
        """Take several lanes (u32) out, or none; raises if one of them is out already."""

    def finish_where(self, done: Buffer | Sequence[int], /) -> int:
        """Take out the lanes that a mask marks, and return how many of them were active.

        Args:
            done: For each lane whether it is done (bool or u8). Lanes that are out already may be marked.
        """

    def active(self, lane: int, /) -> bool: ...
    def ones(self) -> memoryview:
        """Active lanes (u32), ascending."""

    def plan(self) -> LanePlan:
        """The rows of the lanes that are active now; it stays as it is when lanes finish later."""

    def and_(self, other: Lanes, /) -> Lanes:
        """Lanes active in both; raises if the sizes differ."""

    def and_not(self, other: Lanes, /) -> Lanes:
        """Lanes active here and not in ``other``."""

    def any(self) -> bool: ...
    def count(self) -> int: ...
    def __len__(self) -> int:
        """n, the number of lanes made."""

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

    def insert(self, space: int, tokens: TokenBuffer, /) -> int:
        """Count one path from the root of a space, store what of it is not there yet, and return the node it ends at.

        Raises:
            TreeError: There is no such space, or 32 bits do not suffice for the path, its nodes or their number.
        """

    def append(self, node: int, tokens: TokenBuffer, /) -> int:
        """Move one path that ends at ``node`` on by some tokens, and return the node it ends at now.

        Costs as much as the tokens appended, however deep the node is.

        Raises:
            ArgumentError: No path ends there; :meth:`fork` makes one.
            TreeError: There is no such node, or as for :meth:`insert`.
        """

    def fork(self, node: int, /) -> None:
        """Count one more path from the root to the end of ``node``, as if it were inserted again.

        Takes a step for every node above; stores nothing.

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

    def span(self, node: int, /) -> TokenBuffer:
        """The tokens that are a node's own, as they were stored first."""

    def path(self, node: int, /) -> TokenBuffer:
        """The tokens from the root to the end of a node, as they were stored first."""

    def columns(self, ends: Buffer | Sequence[int], /) -> PrefixColumns:
        """The paths that end at these nodes (u32), one a rollout, as the columns that packing is fed with.

        What is shared stands once, to the token: also the first tokens of sibling turns, which a tree stores for each.
        Nodes may repeat. Log-probabilities, versions and flags are those stored first; where a path gave the same ids
        others, it is trained with the first ones, or not at all where those were not sampled.

        Raises:
            TreeError: There is no such node.
        """

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
class PrefixColumns:
    """Paths of a :class:`Prefix` as a forest with tokens: N nodes, R paths, T tokens.

    Every space that has one of the paths is a tree, below a root without tokens. The columns of a forest are arguments
    of :func:`pack_tree` in their order, and of its siblings.
    """

    parents: Final[memoryview]
    """Per node its parent (u32, N), which has a smaller number; a root's is itself."""
    leaves: Final[memoryview]
    """Per path the node it ends at (u32, R)."""
    offsets: Final[memoryview]
    """Node n has the tokens ``offsets[n]`` to ``offsets[n + 1]`` (u64, N + 1)."""
    ids: Final[memoryview]
    """Token ids (u32, T)."""
    logprobs: Final[memoryview]
    """Log-probabilities in nats (f32, T)."""
    versions: Final[memoryview]
    """Weight versions (i32, T)."""
    flags: Final[memoryview]
    """``SAMPLED``, ``SYNTHETIC``, ``TRUNCATED`` (u8, T)."""
    nodes: Final[memoryview]
    """Per node its id in the index (u32, N)."""

@final
class PrefixMatch:
    """How far some ids are in a :class:`Prefix`."""

    node: Final[int]
    """The last node of which something matches; the root where nothing does."""
    matched: Final[int]
    """How many of the ids match in all."""
    offset: Final[int]
    """How many tokens of ``node`` match: all of them, unless the ids leave it or end before its end."""

@final
class PrefixNode:
    """One node of a :class:`Prefix`, as it was when it was read."""

    parent: Final[int]
    """The node before it; a root is its own. A split gives a node another parent, with a larger id."""
    space: Final[int]
    """The space it is in."""
    len: Final[int]
    """How many tokens are its own; 0 for a root only."""
    depth: Final[int]
    """Tokens from the root to its end."""
    generated: Final[int]
    """Of its own tokens, those that were sampled."""
    passes: Final[int]
    """Paths that go through it or end there."""
    ends: Final[int]
    """Paths that end there."""

@final
class Reuse:
    """What sharing saves, in tokens. flat >= unique >= longest, always.

    A token was generated if it was stored with the flag ``SAMPLED``.
    """

    paths: Final[int]
    """Paths counted: inserted or forked."""
    flat: Final[int]
    """Tokens of every path, as if each were stored for itself."""
    unique: Final[int]
    """Tokens stored."""
    flat_generated: Final[int]
    """Of ``flat``, those that were generated."""
    unique_generated: Final[int]
    """Of ``unique``, those that were generated."""
    longest: Final[int]
    """Tokens of the longest path."""
    ratio: Final[float]
    """Share of ``flat`` that did not have to be stored, 1 - unique / flat; 0 where nothing is."""
    ideal: Final[float]
    """``flat / unique``, the most that work proportional to tokens can gain; 1 where nothing is stored."""
    ideal_generated: Final[float]
    """The same of generated tokens only, which is what decoding costs."""

def read_reply(
    data: Buffer,
    /,
    *,
    form: str = "chat",
    entropy: str = "consistent",
    top: int | None = None,
    version: int = -1,
    think: tuple[str, str] | None = None,
    tool: tuple[str, str] | None = None,
    max_tokens: int | None = None,
) -> ParsedReply:
    """Read the body of a completion, in one pass and without Python objects in between.

    Both ways of listing log-probabilities are read, ``logprobs.content`` and, where that is missing, the lists
    ``token_logprobs``, ``tokens`` and ``top_logprobs``. Ids are taken from ``token_ids``, and where that is missing
    from tokens that are named ``token_id:17``, or from the ``id`` of each entry (llama.cpp) if these are as many as
    usage says were generated: a server may put the tokens of one character into one entry.

    Args:
        data: The body as received: JSON in UTF-8. A byte order mark is passed over.
        form: What it is: ``chat`` (choices with a message), ``completion`` (choices with a text, as ``/v1/completions``
            answers) or ``generate`` (what SGLang's ``/generate`` answers, a list of it where several were asked for).
            A text that no server has taken apart is the content, whatever tags are in it.
        entropy: What a token's entropy is, from the log-probabilities ``l`` of the k likeliest tokens, ``p = exp(l)``
            and ``q = p / sum(p)``: ``consistent`` (``-sum(q ln q)``), ``parallelmuse`` (``-sum(q ln p)``), or
            ``surprisal`` (``-l`` of the sampled token; needs no list).
        top: k, at least 1. Where a server lists fewer tokens, and if left out, all it lists.
        version: Version of the weights that answered; -1 for not known.
        think: Tags around thinking; ``("<think>", "</think>")`` if left out.
        tool: Tags around a tool call; ``("<tool_call>", "</tool_call>")`` if left out.
        max_tokens: The most tokens that a choice may have, as the request says. One of as many that is not said to have
            ended by itself (a finish reason that is null or unknown) has ``length`` as its finish reason.

    Raises:
        ReplyError: The bytes are no such reply; ``offset`` is the byte at which what is wrong starts.
        ArgumentError: An option has a value it cannot have.
    """

@final
class ReplyOptions:
    """How replies are read: the options of :func:`read_reply`, checked once.

    Args:
        ids: Whether token ids were asked for; what a server gives unasked is dropped. The rest is as there.

    Raises:
        ArgumentError: An option has a value it cannot have.
    """

    def __new__(
        cls,
        *,
        form: str = "chat",
        entropy: str = "consistent",
        top: int | None = None,
        version: int = -1,
        ids: bool = True,
        think: tuple[str, str] | None = None,
        tool: tuple[str, str] | None = None,
        max_tokens: int | None = None,
    ) -> ReplyOptions: ...

def append_reply(
    tree: CoreTree,
    rollouts: Sequence[int],
    options: ReplyOptions,
    data: Buffer,
    agent: int,
    namespace: int,
    turn: int,
    retries: int,
    micros: int,
    context: int | None = None,
    /,
) -> tuple[list[tuple[str, str | None, list[tuple[str, str, str]], str, int, int, str]], int, int, int, str, int]:
    """Read the body of a completion and append its choices to a tree as turns, in one crossing.

    Choice i goes to rollout i; choices and rollouts that are left over are left alone. The prompt of several choices
    was computed once, so it counts as cached for all but the first, and so do retries. What was generated is counted
    from the tokens that are listed; where not every choice has them, the server's sum is shared out by the length of
    messages.

    Args:
        tree: The tree.
        rollouts: Growing rollouts, in the order of their draws.
        options: How to read the body.
        data: The body as received.
        agent: Interned name.
        namespace: Interned model, sampling parameters and weight version: part of the merge key.
        turn: Model turns on the path before this one; tool call ids are made of it.
        retries: Attempts beyond the first.
        micros: Wall time of the call in microseconds.
        context: Id from :meth:`CoreTree.context` when what was sent is not the path.

    Returns:
        ``(choices, prompt, cached, generated, served, estimated)`` with -1 for figures that the server did not report;
        of ``generated``, ``estimated`` is as in :class:`ParsedReply`. Each choice is ``(content, reasoning, calls,
        finish, node, size, fault)``: calls as (id, name, arguments), the node of its turn and the bytes of its message.
        Where a choice cannot be a turn (more than 1000 tool calls, a message above 16 MiB with its reasoning, more than
        2**20 token ids, a rollout that has ended) its fault says why, and its node is -1.

    Raises:
        ReplyError: The bytes are no chat completion; the tree is unchanged.
        TreeError: A rollout has ended, or an id names nothing.
    """

def append_ids_reply(
    tree: CoreTree,
    rollouts: Sequence[int],
    options: ReplyOptions,
    data: Buffer,
    agent: int,
    namespace: int,
    turn: int,
    retries: int,
    micros: int,
    node: int,
    context: int | None = None,
    drift: tuple[str, int] | None = None,
    kept: tuple[int, int, str] | None = None,
    /,
) -> tuple[list[tuple[str, str | None, list[tuple[str, str, str]], str, int, int, str]], int, int, int, str, int]:
    """:func:`append_reply` for a reply to the conversation at ``node`` whose every token must be known.

    A choice without token ids, or without a log-probability for each, makes no turn but a fault that says so; without
    ids of the prompt (where there is a ``drift``) none makes a turn.

    Args:
        tree: As for :func:`append_reply`, like all up to ``micros``.
        rollouts: See there.
        options: See there.
        data: See there.
        agent: See there.
        namespace: See there.
        turn: See there.
        retries: See there.
        micros: See there.
        node: The node whose path is the conversation.
        context: The drift of a prompt that was sent as ids (:func:`request_ids`), if it drifted.
        drift: For a prompt that the server made: policy and limit for its ids, see :func:`settle_ids`. Without it
            a server that says it was given other ids than were sent is a fault.
        kept: ``(turn, tokens, text)`` where the prompt went on with the first ``tokens`` of an earlier turn at
            ``node``, which say ``text``: the choices become whole turns that begin with them, as they were sampled
            then. Neither the reply's own text nor what it counts as generated includes them.
    """

def request_ids(tree: CoreTree, node: int, head: Buffer, tail: Buffer, context: int | None = None, /) -> bytes:
    """Join ``head``, the ids that a model is given at ``node`` as decimal numbers, and ``tail``, in one allocation.

    The numbers are separated by commas: between ``[`` and ``]`` they are a JSON array. They are the ids of the path, or
    what took their place where a prompt drifted.

    Args:
        tree: The tree.
        node: A node; all nodes on its path must have ids.
        head: The body up to the first id.
        tail: The body after the last one.
        context: The drift of the turn that is asked for, if its prompt drifts.

    Raises:
        ArgumentError: A node on the path has no ids, or the context is one of messages.
        TreeError: There is no such node or context.
    """

def last_ids(tree: CoreTree, node: int, most: int = 4294967295, /) -> memoryview:
    """The last ids that a model is given at ``node`` (u32), at most so many.

    Raises:
        ArgumentError: A node on the path has no ids.
        TreeError: There is no such node.
    """

def align_ids(tree: CoreTree, node: int, prompt: Buffer | Sequence[int], /) -> tuple[int, int, list[int]]:
    """Compare the ids of a prompt (u32) with what a model is given at ``node``, without copying that.

    Returns:
        ``(common, known, pending)``: how many ids both have in common at the beginning, how many the path has up to the
        first node without, and the nodes from there on. Where ``common`` is ``known``, the rest of the prompt is what
        the pending nodes say.

    Raises:
        TreeError: There is no such node.
    """

def settle_ids(tree: CoreTree, node: int, prompt: Buffer | Sequence[int], policy: str, limit: int, /) -> int | None:
    """Settle the ids (u32) of a prompt that was, or will be, sent for the conversation at ``node``.

    A prompt that goes along with the path gives what it has beyond to the nodes that have no ids yet: all to the last,
    none to those before. One that drifts is made a context (:func:`drift`), by ``policy``: ``bridge`` keeps the path
    and takes from the prompt what comes after it, found behind the id that ended each turn (none did if the turn was
    cut, or says that id before); ``realign``, and a bridge that is not found, replaces the rest of the path, but if
    that is ``limit`` ids or more it forks; ``fork`` always forks.

    Returns:
        The context for the turn; None where nothing drifted.

    Raises:
        ArgumentError: A model turn on the path has no ids, or there is no such policy.
        TreeError: There is no such node.
    """

def give_ids(tree: CoreTree, node: int, ids: Buffer | Sequence[int], /) -> None:
    """Give ids (u32) to the nodes up to this one that have none: all to the last, none to those before.

    Raises:
        ArgumentError: A model turn on the path has no ids.
        TreeError: There is no such node.
    """

def drift(tree: CoreTree, policy: str, keep: int, given: TokenBuffer | None = None, /) -> int:
    """Record that a prompt has only the first ``keep`` ids of its path; returns a context for :meth:`CoreTree.turn`.

    What a model is given at that turn and below it follows: with ``bridge`` the path, with ``realign`` and ``fork`` its
    first ``keep`` ids and then ``given``. :func:`harvest` makes samples of what a model was given.

    Args:
        tree: The tree.
        policy: ``bridge``, ``realign`` or ``fork``; with ``fork`` a training sample of its own begins there.
        keep: Ids that prompt and path have in common at the beginning.
        given: What the model was given after them; None for a bridge, and only there.

    Raises:
        ArgumentError: A value it cannot have.
    """

def drift_of(tree: CoreTree, node: int, /) -> tuple[str, int, TokenBuffer] | None:
    """``(policy, keep, given)`` of a turn whose prompt drifted, else None; ``given`` is empty for a bridge.

    Raises:
        TreeError: There is no such node.
    """

@final
class ParsedReply:
    """What a reply says.

    Token figures are None where they are missing, and where they cannot be true: negative, no integer (12.0 is one),
    above 2**31 - 1.
    """

    choices: Final[tuple[ParsedChoice, ...]]
    """By their number, or as they came where the server numbers none; empty where it sent an empty list."""
    prompt: Final[int | None]
    """Tokens of the prompt."""
    cached: Final[int | None]
    """Of these, tokens the server had cached; never more than :attr:`prompt`."""
    generated: Final[int | None]
    """Tokens of all choices; with :attr:`estimated` where the server counts the first of several alone."""
    estimated: Final[int]
    """Of these, tokens that are estimated: by length, from the first choice."""
    reasoning: Final[int | None]
    """Of the tokens of all choices, those of reasoning."""
    prompt_ids: Final[memoryview | None]
    """Token ids of the prompt (u32), of the reply or of its first choice that has any; None where none has."""
    served: Final[str]
    """The model and the fingerprint that the server names, each cut to 64 characters; empty for neither."""

@final
class ParsedChoice:
    """One completion."""

    index: Final[int]
    """Its number among the choices."""
    role: Final[str]
    """Who speaks; empty where the server does not say."""
    content: Final[str]
    """The visible text, parts joined; the refusal where there is none; else empty."""
    refusal: Final[str | None]
    """Why the model would not answer."""
    reasoning: Final[str | None]
    """What it thought, where the server sends that beside the text."""
    tool_calls: Final[list[tuple[str, str, str]]]
    """Its calls as (id, name, arguments), as they came: ids may be empty, arguments may be no JSON.

    Where there are none, the ``function_call`` of older servers.
    """
    finish: Final[str]
    """``stop``, ``length``, ``tool_calls``, ``content_filter`` or what was sent; empty for nothing."""
    tokens: Final[TokenBuffer]
    """The sampled tokens, none where the server gives no ids, with the uncertainty of the choice in any case.

    Their log-probabilities are :attr:`logprobs` where the choice is :attr:`aligned`, else NaN. The last token of a
    choice that was cut off (``length``) is ``TRUNCATED``. The same object at each access.
    """
    has_ids: Final[bool]
    """Whether the server gave token ids."""
    aligned: Final[bool]
    """Whether the server gave one log-probability for each id.

    False where it gave only one of the two, and where it listed some of the tokens only: some servers list none of
    a tool call. Ids and log-probabilities then stand for themselves, and uncertainty is of what was listed.
    """
    logprobs: Final[memoryview | None]
    """Log-probabilities (f32) in nats of the tokens that the server lists, or None.

    From -9999, which stands for zero probability and whatever is below, to 0; NaN where the server does not know
    one. How many there are is up to the server: see :attr:`aligned`.
    """
    entropies: Final[memoryview | None]
    """Entropies (f32) in nats of the same tokens; NaN where not known."""
    def arpo(self, vocabulary: int, /) -> float:
        """ARPO's uncertainty for a vocabulary of this many tokens; NaN where no likeliest tokens are listed.

        ``-sum(p ln p)`` over the ten likeliest tokens at each of the first twenty places, all in one sum, over
        ``ln(vocabulary)``.
        """

    def message(self, turn: int, /) -> bytes:
        """The message for the history in canonical bytes: what :func:`trunkline.llm.messages.assistant` writes.

        Args:
            turn: Zero-based index of the model turn on its path, which makes the ids of its calls; below 36**4.

        Raises:
            ArgumentError: There is no id for a call.
        """

@final
class LanePlan:
    """Some of the lanes of a batch, in order, whose rows are worked on.

    Rows are a C-contiguous buffer of one dimension (a cell a lane) or two (lanes x 1 or more cells), of any format that
    ``memoryview.cast`` knows: native integers, f32, f64, bools and bytes. View other cells (f16, bf16) as integers of
    their size. What comes back is a read-only ``memoryview`` of the same format and number of dimensions, also if there
    are no rows. No row of a lane outside the plan is ever in what comes back, and ``scatter(gather(x), fill)`` equals
    ``x`` in the lanes of the plan.
    """

    lanes: Final[memoryview]
    """The lanes (u32), ascending."""
    size: Final[int]
    """How many lanes the batch has, in the plan or not."""
    valid: Final[memoryview]
    """For each lane of the batch whether it is in the plan (bool)."""
    def gather(self, rows: Buffer, /) -> memoryview:
        """The rows of the plan's lanes.

        Args:
            rows: One row for each lane of the batch. Rows of 2 KB and more are copied one by one, and no other is read.
        """

    def scatter(self, rows: Buffer, fill: float | bytes, /) -> tuple[memoryview, memoryview]:
        """Rows for all lanes of the batch, and :attr:`valid`.

        Args:
            rows: One row for each lane of the plan.
            fill: What the cells of all other lanes hold: a number that fits the format, as ``struct.pack`` takes it.
        """

    def __len__(self) -> int:
        """How many lanes are in the plan."""

@final
class LaneQueue:
    """Lanes that run until each waits at one of several queues: a role, an agent, a model.

    Args:
        n: How many lanes there are. All of them run.
        limits: For each queue the most lanes of one batch, 0 for any number.
    """

    def __new__(cls, n: int, limits: Buffer | Sequence[int], /) -> LaneQueue: ...
    def wait(self, lane: int, queue: int, /) -> None:
        """Let a running lane wait; raises if it has finished or waits already."""

    def finish(self, lane: int, /) -> None:
        """Take a lane out, whether it runs or waits. The others may be due after it."""

    def flush(self) -> list[tuple[int, LanePlan]]:
        """The batches that are due, each with its queue, in order of queues and lanes; their lanes run again.

        Everything is due when no lane runs any more. Before that, a queue gives its first lanes as often as they fill a
        batch. Empty while nothing is due.
        """

    @property
    def counts(self) -> tuple[int, int]:
        """How many lanes run, and how many wait."""

@final
class ActivityCounter:
    """What each of any number of rollouts does: lanes that come and go, for whoever must know who waits for company.

    A lane is a number that is never given twice. It runs, asks at a queue (a model, a role), or is away (in a tool),
    until it ends. A lane that has ended stays so, and nothing has an effect on it.

    Raises:
        ArgumentError: From every method that takes a lane: it was never opened, or a queue is not 0 to 65535.
    """

    def __new__(cls) -> ActivityCounter: ...
    def open(self) -> int:
        """Add a lane that runs, and return it."""

    def run(self, lane: int, /) -> None:
        """The lane goes on."""

    def ask(self, lane: int, queue: int, /) -> bool:
        """The lane waits at a queue. True if it was the last that ran."""

    def leave(self, lane: int, /) -> bool:
        """The lane is somewhere else, and will ask again, nobody knows when. True if it was the last that ran."""

    def end(self, lane: int, /) -> bool:
        """The lane is done for good. True if none runs now: it was the last, or the others waited for one away."""

    @property
    def running(self) -> int:
        """How many lanes run."""

    @property
    def asking(self) -> int:
        """How many lanes ask, at whatever queue."""

    @property
    def away(self) -> int:
        """How many lanes are away."""

    def asking_of(self, queue: int, /) -> int:
        """How many lanes ask at a queue."""

@final
class Refusal:
    """Why a budget does not allow something. It is an outcome to record, and its ``str`` says what is short."""

    currency: Final[str]
    """The scarcest of ``CURRENCIES``."""
    wanted: Final[int | None]
    """How much was asked for; None if no upper bound is known."""
    left: Final[int]
    limit: Final[int]
    """The limit; 2**64 - 1 where there is none and the counter is full."""
    text: Final[str]

@final
class Ledger:
    """A budget and everything that draws on it, in eight ``CURRENCIES``.

    Amounts are dictionaries from currencies to numbers of 0 to 2**64 - 1; what is left out is 0. Whatever may cost
    something reserves the most that it can cost before it starts, and is settled at what it did cost. In every
    currency with a limit ``spent + reserved + leased <= limit + overshoot``.

    Args:
        limits: The most of each currency that may be spent; what is left out or None has no limit.
        spent: What an earlier part of the run has spent, as its rows say.
        estimated: The part of ``spent`` that was only estimated.
    """

    def __new__(
        cls,
        limits: dict[str, int] | dict[str, int | None] | None = None,
        spent: dict[str, int] | None = None,
        estimated: dict[str, int] | None = None,
    ) -> Ledger: ...
    def reserve(self, most: dict[str, int] | dict[str, int | None], /) -> int | Refusal:
        """Set aside the most that something can cost, and return the number of the reservation, or why not.

        Args:
            most: Its cost at most: for n draws n times the token limit of a reply. None says that there is no bound,
                which is refused where the currency has a limit.
        """

    def settle(self, reservation: int, actual: dict[str, int], /) -> None:
        """Count what something did cost, which may be more than was reserved, and give the rest back.

        Raises if the reservation was settled or released before.
        """

    def release(self, reservation: int, /) -> None:
        """Give all of a reservation back: what it was for did not happen."""

    def lease(self, parts: int, least: dict[str, int] | dict[str, int | None], /) -> tuple[int, Ledger] | Refusal:
        """Lease out one of ``parts`` equal parts of what is left, rounded up, but no less than ``least``.

        Leases shrink as the limit comes near. What is leased are the limits of the ledger that comes back with the
        lease's number; currencies without a limit have none there either. Refused if less than ``least`` is left.
        """

    def take_back(self, lease: int, spent: dict[str, int], /) -> None:
        """Take a lease back on which nothing is in flight any more; raises the second time.

        Whoever still holds reservations of the lease (``open`` of its ledger is not 0) is settled as lost, with them.

        Args:
            lease: Its number.
            spent: What was spent of it, as its ledger says.
        """

    def settle_lost(self, lease: int, durable: dict[str, int], unacknowledged: dict[str, int], /) -> None:
        """Take the lease of a dead worker back; raises the second time.

        Args:
            lease: Its number.
            durable: What is known to be spent of it.
            unacknowledged: What was reserved for calls of unknown outcome. It counts as spent, and as estimated.
        """

    @property
    def limits(self) -> dict[str, int]:
        """The limits of the currencies that have one."""

    @property
    def left(self) -> dict[str, int]:
        """What can still be reserved or leased of the currencies that have a limit."""

    @property
    def spent(self) -> dict[str, int]:
        """What was spent, estimates included."""

    @property
    def estimated(self) -> dict[str, int]:
        """The part of :attr:`spent` that nobody measured."""

    @property
    def overshoot(self) -> dict[str, int]:
        """What things cost beyond what was reserved or leased for them, in the currencies that have a limit."""

    @property
    def reserved(self) -> dict[str, int]:
        """What open reservations hold."""

    @property
    def leased(self) -> dict[str, int]:
        """What open leases hold, in the currencies that have a limit."""

    @property
    def open(self) -> int:
        """How many reservations and leases are open."""

@final
class Scheduler:
    """The ready work of many tasks: which of it starts as soon as there is room.

    Tasks share by start-time fair queueing: tasks that are always ready are never more than one batch apart, by weight.
    The same calls give the same order. Nothing is kept of a rollout that is done, nor of a task that was cancelled once
    its rollouts are done. What cannot be done is an ``ArgumentError``.

    Args:
        limit: The most rollouts that run at a time; None for any number.
        batch: The most draws or rows of one start; None for any number.
    """

    def __new__(cls, limit: int | None = None, batch: int | None = None) -> Scheduler: ...
    def add(self, weight: int = 1, limit: int | None = None) -> int:
        """Add a task and return its number (0, 1, 2, ...).

        Args:
            weight: With twice the weight a task is served twice as often.
            limit: The most of its rollouts that run at a time; None for any number.
        """

    def draws(
        self,
        task: int,
        point: int,
        n: int,
        first: int = 0,
        most: dict[str, int] | dict[str, int | None] | None = None,
    ) -> None:
        """Make draws of a fork point ready, after the task's others. Each starts a rollout.

        Args:
            task: The task's number; raises if it was cancelled.
            point: The fork point.
            n: How many draws.
            first: The first of them.
            most: What one draw can cost at most, as in :meth:`Ledger.reserve`; nothing if left out.
        """

    def rows(self, task: int, batch: int, n: int, most: dict[str, int] | dict[str, int | None] | None = None) -> None:
        """Make a batch of rows ready whose rollouts run already and wait for a call together. They go before draws.

        Args:
            task: The task's number; raises if it was cancelled.
            batch: The caller's number for the batch.
            n: How many rows.
            most: What one row can cost at most, as in :meth:`Ledger.reserve`; nothing if left out.
        """

    def next(self, max: int, ledger: Ledger, /) -> tuple[list[Start], list[RefusedStart]]:
        """What may start now, in this order, and what the ledger refuses.

        Work that does not fit as a whole starts in part, and the rest stays ready. Each piece of work is refused once,
        until some of it has started. What is refused holds up no other task, but what its own task has ready behind it.

        Args:
            max: The most draws and rows in all; at most 65,536 come at a time.
            ledger: What reservations are made in.
        """

    def done(self, rollout: int, /) -> None:
        """A rollout has ended, by its number in :attr:`Start.rollout` and after; raises the second time."""

    def cancel(self, task: int, /) -> int:
        """Drop what a task has ready, take no more of it, and return how many draws and rows that were.

        Its rollouts run on until they are done. A task that is over is cancelled too, so that nothing of it is kept.
        """

    def counts(self, task: int, /) -> tuple[int, int]:
        """How many draws and rows a task has ready, and how many of its rollouts run."""

    @property
    def running(self) -> int:
        """How many rollouts run."""

@final
class Start:
    """Draws of a fork point, or rows of a waiting batch, that may start now, in one request."""

    task: Final[int]
    rows: Final[bool]
    """Whether these are rows and not draws."""
    point: Final[int]
    """The fork point, or the number of the batch."""
    first: Final[int]
    """The first draw or row."""
    n: Final[int]
    rollout: Final[int | None]
    """The run-wide number of the first rollout that it starts; the others follow. None for rows."""
    reservation: Final[int]
    """What the ledger holds for all of it."""

@final
class RefusedStart:
    """Work that the ledger does not allow. It stays ready."""

    task: Final[int]
    rows: Final[bool]
    """Whether these are rows and not draws."""
    point: Final[int]
    """The fork point, or the number of the batch."""
    first: Final[int]
    """The first draw or row."""
    n: Final[int]
    refusal: Final[Refusal]

@final
class Transcript:
    """What the members of a team said in one rollout, as pieces of its tree, and the prompts that are made of it.

    Args:
        tree: The tree.
    """

    def __new__(cls, tree: CoreTree, /) -> Transcript: ...
    def add(self, member: int, before: Buffer, text: str, after: Buffer, /) -> int:
        """Keep what a member said, and return its piece.

        Args:
            member: Its number, from 0.
            before: What stands before the text, as JSON has it.
            text: The text as it is.
            after: What stands after it, as JSON has it.

        Raises:
            ArgumentError: The text holds lone surrogates.
            TreeError: It is no piece of a message.
        """

    def clear(self) -> None:
        """Forget what was said."""

    def frame(self, member: int, parts: Sequence[Sequence[int]], sees: Sequence[int] | None, /) -> None:
        """Set what a member's prompt is made of besides what was said.

        Args:
            member: Its number; members before it have a frame.
            parts: Fragments of the tree; what was said stands between any two parts.
            sees: Whose part of the transcript it sees; None for everybody's.

        Raises:
            ArgumentError: A member before it has no frame.
        """

    def prompt(self, member: int, /) -> int:
        """Record what a member is to be sent, and return its context.

        Raises:
            ArgumentError: The member has no frame.
            TreeError: A fragment does not exist, or pieces make no message.
        """

@final
class Tally:
    """Weighted votes, counted in the order in which they are given.

    An answer is the number of its cluster or its normalised text. The leader has the greatest weight; of equal ones it
    is the one that was voted for first, so votes are given in a logical order, never in the order of arrival. Weights
    are summed in that order as f64: whole ones exactly.
    """

    def __new__(cls) -> Tally: ...
    def vote(self, answer: int | str | None, weight: float = 1.0, /) -> None:
        """Count a vote, or with None an abstention. Weights are finite and not negative."""

    def answers(self) -> list[tuple[int | str, float, int]]:
        """Every answer with its weight and its number of votes, in order of first votes."""

    @property
    def leader(self) -> int | str | None:
        """The answer that wins as things are."""

    @property
    def runner_up(self) -> int | str | None:
        """The answer that would win without the leader."""

    @property
    def margin(self) -> float:
        """How much weight the leader has more than the runner-up; an answer that nobody gave has 0."""

    @property
    def abstained(self) -> int: ...
    def settled(self, tries: int, heaviest: float = 1.0, /) -> bool:
        """Whether the leader keeps its lead even if all remaining tries agree with the runner-up or a new answer.

        A possible tie is not settled while a try remains, and neither is a margin within the rounding of the sums.

        Args:
            tries: How many votes may still come.
            heaviest: The most that one of them weighs.
        """

@final
class Search:
    """A tree search over a forest: what is known of every node, and the picks that are in flight.

    Scores are upper confidence bounds. With V a node's mean reward, N its visits and Np those of its parent:

    * ``"uct"``: ``(V + offset + 1e-8) / 2 + c * sqrt(ln(Np + 1) / (N + 1e-10))``, as in TreeRL, where ``offset`` is 1,
      for rewards from -1 to 1, and ``c`` is 0.5 in training;
    * ``"ucb1"``: ``V + c * sqrt(ln(Np) / N)``, infinity where N is 0; the textbook has the root of 2 for ``c``.

    A visit in flight counts in all three as one that came back with the reward ``loss`` (virtual loss), so that
    parallel picks spread. Of nodes that score alike, the one that an earlier rollout passes wins; where no rollout
    passes, the smaller number.

    For a tree: ``parents, _, leaves = tree.shape()`` and ``_, visits, values = tree.values()``.

    Args:
        parents: Parent of every node (u32), a smaller number; a root's is itself.
        visits: Scored rollouts through every node (u32).
        values: Their mean reward (f64); not read where there are none.
        leaves: The last node of every rollout (u32), in the order they were opened. Nodes are numbered as they arrive,
            so with them, and only then, picks do not depend on which of two parallel rollouts was faster.
        in_flight: Picks through every node that have not been scored yet (u32); none if left out.
        formula: ``"uct"`` or ``"ucb1"``.
        c: Weight of what was tried little; 0 or more.
        offset: Added to V by ``"uct"``.
        loss: The reward that a visit in flight counts as.

    Raises:
        ArgumentError: If columns have different lengths, a parent is no smaller number, a leaf does not exist, or a
            visited node's value or an option is out of range: numbers are from -1e100 to 1e100.
    """

    def __new__(
        cls,
        parents: Buffer | Sequence[int],
        visits: Buffer | Sequence[int],
        values: Buffer | Sequence[float],
        *,
        leaves: Buffer | Sequence[int] | None = None,
        in_flight: Buffer | Sequence[int] | None = None,
        formula: str = "uct",
        c: float = 1.0,
        offset: float = 1.0,
        loss: float = 0.0,
    ) -> Search: ...
    def scores(self) -> memoryview:
        """How each node rates against its siblings (f64); infinity for roots."""

    @property
    def in_flight(self) -> memoryview:
        """Picks in flight through each node (u32), those of :meth:`descend` included."""

    def descend(self, room: Buffer | Sequence[int], k: int, *, start: int = 0) -> memoryview:
        """Pick ``k`` nodes to expand (u32), each by going down from ``start``.

        The way stops at the first node that has room, else it goes on to the child with the highest score; what leads
        to no room is never entered. Each pick takes one place and is in flight from then on, on its whole way, so that
        a further call goes on from there.

        Args:
            room: How many children every node may still get (u32): 0 for what is terminal or full.
            k: How many picks; fewer come back where there is no room for more.
            start: Where to start: the root.

        Raises:
            ArgumentError: If ``room`` has another length, there is no node ``start``, or there would be more than
                4,096 picks.
        """

    def __len__(self) -> int:
        """How many nodes there are."""

def fork_points(
    parents: Buffer | Sequence[int], kinds: Buffer | Sequence[int], leaves: Buffer | Sequence[int]
) -> memoryview:
    """Return the fork points on the paths of rollouts (u32): nodes after which one took a model turn.

    These are the prompt and the last observation of every step that another step follows, never what ended a rollout.
    They come rollout by rollout, each from the root down, so that a draw from them does not depend on which node
    arrived first. ``fork_points(*tree.shape())`` are those of a whole tree.

    Args:
        parents: Parent of every node (u32), a smaller number; a root's is itself.
        kinds: Kind of every node (u8): ``TURN`` matters.
        leaves: The last node of each rollout that counts (u32), such as those of one subgroup.

    Raises:
        ArgumentError: If columns have different lengths, or a parent or leaf does not exist.
    """

def draw_points(points: Buffer | Sequence[int], k: int, seed: int, *, replace: bool = False) -> memoryview:
    """Draw ``k`` of ``points`` (u32), each as likely as any other, in the order drawn (u32).

    Args:
        points: What to draw from (u32).
        k: How many.
        seed: Any unsigned 64-bit integer: equal seeds and points give equal picks, for good. Give each draw its own.
        replace: Whether a point may come twice, as in Tree-GRPO.

    Raises:
        ArgumentError: If there are too few points: fewer than ``k`` without ``replace``, none with it; or if ``k`` is
            above 16,777,216 with it.
    """

def top_turns(
    perplexities: Buffer | Sequence[float], k: int, *, region: str = "tool", duplicates: bool = False
) -> memoryview:
    """Return the ``k`` most uncertain turns (u32), most uncertain first, the earlier where two are equal.

    A turn of unknown perplexity is never picked: fewer come back where too few are known.

    Args:
        perplexities: Three numbers a turn (f32), in the order of :attr:`TokenBuffer.perplexity`; NaN where not known.
        k: How many turns.
        region: ``"think"``, ``"tool"`` or ``"all"``; or ``"mixed"``: half of the picks, rounded up, by ``"tool"`` and
            the rest by ``"think"``.
        duplicates: Whether ``"mixed"`` picks a turn twice that leads both lists, as ParallelMuse does, or the next one.

    Raises:
        ArgumentError: If there are not three numbers a turn, one is neither positive nor NaN, or duplicates are asked
            for without ``"mixed"``.
    """

def surprising_tokens(
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    offsets: Buffer | Sequence[int],
    logprobs: Buffer | Sequence[float],
    flags: Buffer | Sequence[int],
    k: int,
    *,
    cuts: Buffer | Sequence[int] | None = None,
    limit: int = 4294967295,
    diverse: bool = False,
) -> tuple[memoryview, memoryview]:
    """Return the ``k`` most surprising tokens on the paths of rollouts: where EPTree samples again.

    Never picked are: the first token of a node, where forking is drawing the whole turn again; tokens at or after the
    node's cut, or at or beyond ``limit`` tokens from the root; tokens that were not sampled or whose log-probability is
    not known. Fewer come back where fewer are left.

    Args:
        parents: Parent of every node (u32), a smaller number; a root's is itself.
        leaves: The last node of each rollout that counts (u32), such as those of one subgroup, in the order they were
            opened.
        offsets: Node n has the tokens ``offsets[n]`` to ``offsets[n + 1]`` (u64), as in :class:`Harvest`.
        logprobs: Log-probabilities of all tokens, in nats (f32); NaN where not known.
        flags: Their flags (u8).
        k: How many tokens.
        cuts: Tokens at the start of every node that may be sampled again (u32): up to a word that announces the
            answer. All, if left out.
        limit: The longest path there may be, in tokens.
        diverse: Whether to spread the picks: out of the 2k most surprising, the first and then always the one farthest
            from all taken. Tokens of different nodes are farther apart than any of one.

    Returns:
        The node, and the index of the token in it (both u32); most surprising first. Of equal ones the one that an
        earlier rollout passes first, then the earlier token.

    Raises:
        ArgumentError: If columns do not fit each other, a log-probability of what might be picked is positive, or
            ``k`` is above 4,096 with ``diverse``.
    """

def branch_probability(
    change: float, *, rule: str = "arpo", probability: float = 0.5, weight: float = 0.2, streak: int = 0
) -> float:
    """Return the probability of a branch after a change of entropy.

    Args:
        change: Entropy now less entropy at first.
        rule: ``"arpo"``: ``clip(probability + weight * change, 0, 1)``. ``"aepo"``: ``clip(1 - probability / f +
            weight * change, 0, 1)`` with ``f = max(0, 1 - 0.05 * streak)``, and 0 where f is 0.
        probability: From 0 to 1.
        weight: A finite number.
        streak: In how many rounds in a row the task has branched.

    Raises:
        ArgumentError: If an option is out of range or ``change`` is not finite.
    """

def branch_rows(
    entropies: Buffer | Sequence[float],
    baselines: Buffer | Sequence[float],
    free: int,
    seed: int,
    *,
    rule: str = "arpo",
    probability: float = 0.5,
    weight: float = 0.2,
    beam: int = 2,
    streak: int = 0,
) -> tuple[memoryview, int]:
    """Decide after a tool round of one task how often each active row branches.

    Rows have their turn in the order given, with ``beam - 1`` attempts each, and use as many random numbers whatever
    happens: no row's luck depends on another's entropy.

    Args:
        entropies: Entropy of each row in this round (f64); one that is NaN does not branch.
        baselines: The first entropy known of each row (f64); NaN where this is the first: it has not changed.
        free: Places left for rollouts of the task.
        seed: Any unsigned 64-bit integer: equal seeds and columns give equal branches.
        rule: As for :func:`branch_probability`, which see for the next two as well.
        probability: From 0 to 1.
        weight: A finite number.
        beam: Rows that one row may become in a round, itself included; 1 to 4,096.
        streak: What the last round of this task returned; 0 at first.

    Returns:
        Branches of each row (u32), and the streak: rounds in a row with a branch, this one included.

    Raises:
        ArgumentError: If columns have different lengths, an entropy is infinite or beyond 1e100, or an option is out of
            range.
    """

def initial_chains(total: int, root: float, tool: Buffer | Sequence[float]) -> int:
    """Return how many of ``total`` rollouts start from scratch, the rest being kept for branches.

    AEPO's ``floor(n * sigmoid((root - mean(tool)) / 2)) + 1``: the surer the model is at first, the fewer.

    Args:
        total: Rollouts wanted, n; never more come back.
        root: Entropy of the answer to the bare question.
        tool: Entropies after tool calls (f64), at least one.

    Raises:
        ArgumentError: If ``total`` is 0, ``tool`` is empty, or an entropy is not finite.
    """

def choose_leaves(
    correct: Buffer | Sequence[int], k: int, seed: int, *, choice: str = "random", ratio: float | None = None
) -> memoryview:
    """Choose ``k`` leaves to keep, none twice; their indices (u32) in the order chosen.

    Args:
        correct: Whether each leaf's answer is correct (u8 or bool).
        k: How many.
        seed: Any unsigned 64-bit integer: equal seeds and columns give equal choices, for good.
        choice: ``"random"``; ``"first_correct"``: a correct one if there is any, then random others; ``"balanced"``:
            ``floor(k * ratio)`` correct and as many wrong ones as far as there are such, then random others.
        ratio: From 0 to 0.5, for ``"balanced"`` alone; 0.5 if left out.

    Raises:
        ArgumentError: If there are fewer leaves than ``k``, or an option is out of range or of no use.
    """

def split_evenly(total: int, paths: int) -> memoryview:
    """Split ``total`` evenly over ``paths`` (u32), the remainder going to the last.

    Raises:
        ArgumentError: If there are more paths than ``total`` or than 16,777,216, or none.
    """

def tree_leaves(starts: int, points: int, rounds: int, samples: int = 1) -> int:
    """Return the leaves of ``starts`` chains, each continued ``samples`` times from each of ``points`` places a round.

    ``M (1 + N L T)``: Tree-GRPO's budget with one sample, EPTree's, and ParallelMuse's ``I (1 + K R T)``.

    Raises:
        ArgumentError: If it is more than 64 bits hold.
    """

def tree_steps(trees: int, forks: int, steps: int) -> tuple[float, float]:
    """Return expected steps of one Tree-GRPO round over chains of ``steps``, and those of as many chains.

    ``M (T + N (T + 1) / 2)`` and ``M (1 + N) T``.
    """

def tree_ratio(forks: int, rounds: int) -> float:
    """Return what chains cost over what the tree costs, for long chains: ``(1 + N L) / (1 + N L / 2)``."""

def partial_top_up(budget: int, branched: Buffer | Sequence[int], top_k: int, rounds: int, samples: int) -> memoryview:
    """Return how many fresh rollouts fill up a ParallelMuse budget, for each initial rollout (u32).

    ``floor(B / I) - 1 - b T`` for I initial rollouts; what B leaves over when divided by I is not spent.

    Args:
        budget: B, rollouts in all.
        branched: b of each initial rollout (u32): turns that it was branched at, in all rounds together.
        top_k: K, turns to branch at in a round.
        rounds: R.
        samples: T, samples of each turn.

    Raises:
        ArgumentError: If the budget is less than ``I (1 + K R T)``, an option is 0, ``branched`` is empty, or a b is
            above ``K R``.
    """

def presets() -> dict[str, dict[str, str | float | bool]]:
    """Every estimator by name: where its values land (``lands``: ``rows`` or ``nodes``) and its options.

    A preset named after a framework does what that framework does; ``docs/design/estimators.md`` says where each comes
    from. Options:

    * ``scopes``: which rows are compared. Columns ``group``, ``subgroup``, ``agent``, ``anchor`` joined by ``+`` into a
      scope, or ``subtree`` (every node on the row's path is a group, whether or not the path forks there); several
      scopes are separated by commas.
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
    * ``whiten``: ``batch`` standardises over all tokens of kept rows, with ``sqrt(variance + 1e-8)``, and a row without
      tokens is 0; or ``none``.
    * ``drop_zero``: rows or nodes with an advantage of exactly 0 are not kept.
    * ``gamma``, ``step_weight`` (GiGPO): discount of a step; weight of the part by steps.
    * ``margin`` (Tree-GRPO's node scores): what a node must gain before the gain counts.
    * ``damping`` (TreeRL): a node's sum is divided by the ``sqrt`` of the number of selected rollouts below, by that
      number (``uniform``), or not (``none``). ``signal``: ``local_plus_value``, ``local``, ``value``, or ``ancestors``
      (the mean gain over all nodes above) lands. ``fill``: a node that gains nothing takes the gain of its parent.
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

    Values land where they are asked for. :func:`estimate` gives them per row, or per node where
    ``presets()[preset]["lands"]`` is ``"nodes"``; :func:`to_nodes` takes those of rollouts to nodes, and
    :func:`to_tokens` either to tokens::

        parents, leaves = step_forest(h.parents, h.kinds, h.leaves)  # of h = harvest(...)
        trees = {"parents": parents, "leaves": leaves}
        rows, kept = estimate("tree_grpo", h.rewards, group=h.groups, subgroup=h.subgroups)
        nodes, kept = to_nodes(rows, kept=kept, **trees)
        nodes, kept = estimate("treerl_code", h.rewards, **trees)  # a preset that lands on nodes
        tokens, mask = to_tokens(nodes, h.offsets, kept=kept, flags=h.flags)

    Args:
        preset: A key of :func:`presets`.
        rewards: Rewards (f64), -1e100 to 1e100. NaN is unscored: it gives NaN and is in no baseline.
        group: The task (u32, any numbers). Left out: the root that the row's leaf is under. Presets that land on nodes
            use it where they compare rollouts (``arpo_hard``, ``treerl_code``).
        subgroup: The initial chain that a rollout was expanded for (u32).
        agent: Who acted (u32).
        anchor: What was seen before a step (u32): equal numbers for equal observations.
        trajectory: The rollout that a row is part of (u32), numbered within its group or throughout.
        step: Number of the step (u32), never smaller than in an earlier row of the trajectory. Left out: every row is
            a step of its own.
        step_rewards: Reward of each step (f64); that of the first row of a step counts.
        masked: 1 (u8 or bool) for rows that train nothing. They get 0; whether they count in baselines is an option.
        selected: 1 (u8 or bool) for rollouts that will be trained on, for TreeRL's damping; left out: all.
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
        scopes: At least one; of each the columns (u32) that the rows of a group agree in. No column at all: one group.
        trajectory: As for :func:`estimate`, and so are the others.
        masked: Likewise.
        tokens: Likewise.
        options: As of :func:`presets` but for ``scopes``. Defaults: GRPO as verl has it (``std``, ``ddof=1``,
            ``eps=1e-6``), with 0 for a row that is alone.

    Returns:
        As of :func:`estimate`, one element a row.

    Raises:
        ArgumentError: Likewise.
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

    NaN where nothing was scored; the differences are 0 at roots.

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

    Raises:
        ArgumentError: For columns that do not fit each other, no forest, an infinite reward, or another backup.
    """

def step_forest(
    parents: Buffer | Sequence[int], kinds: Buffer | Sequence[int], leaves: Buffer | Sequence[int], /
) -> tuple[memoryview, memoryview]:
    """Make the forest of steps, which estimators of credit by step are fed with: the nodes and their numbers stay.

    A turn hangs under the turn before it on its path, or under its root, and a rollout ends at its last turn. How many
    messages a prompt has, and how many tools a turn called, changes no value of a turn then. Prompts and observations
    have no children and end no rollout: they count nowhere, and their own values are NaN.

    Args:
        parents: As of :meth:`CoreTree.shape` (u32, N); those of trees side by side will do.
        kinds: Kind of every node (u8, N).
        leaves: The node each rollout ends at (u32, R).

    Returns:
        Parent of every node (u32, N), and the step each rollout ends at (u32, R).

    Raises:
        ArgumentError: The columns make no forest, or kinds are not one a node.
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

    Raises:
        ArgumentError: For columns of different lengths, an infinite reward, a discount that is none, or a step that
            comes after a later one.
    """

def to_nodes(
    values: Buffer | Sequence[float],
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    *,
    kept: Buffer | Sequence[int] | None = None,
) -> tuple[memoryview, memoryview]:
    """Advantages of rollouts on the nodes they share (f64): the mean over those that pass or end there; what is kept.

    The mean times the number of rollouts is what they would train a node with one by one. A rollout that is not kept or
    is NaN is in no mean. A node without any other gets NaN and 0 (u8), else 1.

    Args:
        values: Per rollout its advantage (f64).
        parents: Per node its parent (u32), smaller than the node; a root's is itself.
        leaves: Per rollout the node it ends at (u32).
        kept: Per rollout 1 (u8 or bool) if it is trained on; left out: all.

    Raises:
        ArgumentError: For columns that do not fit each other, or no forest.
    """

def to_tokens(
    values: Buffer | Sequence[float],
    offsets: Buffer | Sequence[int],
    *,
    kept: Buffer | Sequence[int] | None = None,
    mask: Buffer | Sequence[int] | None = None,
    flags: Buffer | Sequence[int] | None = None,
) -> tuple[memoryview, memoryview]:
    """Values of rows or nodes on their tokens (f64), and the mask (u8) of tokens with something to train on.

    What is masked, not kept or NaN gets 0 and 0, so that no NaN reaches a loss.

    Args:
        values: Values (f64).
        offsets: One element (u64) more than ``values``: tokens ``offsets[i]`` to ``offsets[i + 1]`` belong to value i.
        kept: 1 (u8 or bool) for values that are trained on; left out: all.
        mask: 1 (u8 or bool) for tokens that are trained on; left out: all.
        flags: In its place, ``SAMPLED``, ``SYNTHETIC``, ``TRUNCATED`` (u8) of each token: trained on is what was
            sampled and is not synthetic.

    Raises:
        ArgumentError: For columns that do not fit each other, offsets that do not start at 0 or descend, or both a mask
            and flags.
    """

def pack_ragged(
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    offsets: Buffer | Sequence[int],
    ids: Buffer | Sequence[int],
    logprobs: Buffer | Sequence[float],
    versions: Buffer | Sequence[int],
    flags: Buffer | Sequence[int],
    *,
    values: Buffer | Sequence[float] | None = None,
    per: Literal["rollout", "node", "token"] = "rollout",
    rollouts: Buffer | Sequence[int] | None = None,
    masked: Buffer | Sequence[int] | None = None,
    keep_masked: bool = True,
    splits: Buffer | Sequence[int] | None = None,
    unknown: Literal["error", "mask"] = "error",
    merge: bool = False,
    max_prompt: int | None = None,
    max_response: int | None = None,
    long_prompt: Literal["error", "cut", "drop"] = "error",
    long_response: Literal["error", "cut", "drop"] = "error",
) -> Ragged:
    """Rollouts as rows end to end, without padding.

    A rollout is the concatenation of the runs of tokens from its root to its leaf. All layouts share these rules:

    * The loss mask is 1 only on sampled, not synthetic, tokens after the prompt, of rollouts that are not masked, with
      a finite log-probability.
    * Log-probabilities are finite everywhere and 0 where nothing was sampled.
    * Values stand where the loss mask is 1, and 0 elsewhere.
    * ``unpack`` gives back a rollout's four columns bit by bit.

    Args:
        parents: Per node its parent (u32), which has a smaller number; a root is its own.
        leaves: Per rollout the node it ends at (u32).
        offsets: Where the run of each node starts in the columns of tokens (u64), and at last their length.
        ids: Token ids (u32).
        logprobs: Log-probabilities (f32), as in :class:`TokenBuffer`.
        versions: Weight versions (i32).
        flags: ``SAMPLED``, ``SYNTHETIC``, ``TRUNCATED`` (u8).
        values: Advantages (f64 or f32). They must be finite where something is trained.
        per: What has one value each: a rollout, a node, or a token.
        rollouts: Which rollouts to export (u32), in the order of their rows, each at most once; all if left out.
        masked: Per rollout 1 (u8 or bool) where nothing of it is trained.
        keep_masked: Whether masked rollouts have a row, with a loss mask of 0, or are left out.
        splits: Per rollout the last node of its prompt (u32), on its path. If left out, a prompt ends before the first
            sampled token.
        unknown: What to do about sampled tokens without a finite log-probability that would be trained: refuse to pack,
            or take them out of the loss.
        merge: Whether rollouts that end at one leaf are one row, with their number as its weight and the mean of their
            values, which stands for them where the loss is linear in the advantage. Only rollouts with equal masks and
            prompts are merged.
        max_prompt: Most tokens of a prompt.
        max_response: Most tokens of a response.
        long_prompt: What to do about longer prompts: refuse to pack, cut them on the left, or drop the row.
        long_response: What to do about longer responses: refuse to pack, cut them on the right, or drop the row.

    What was not packed as it was is counted in ``report``: masked rollouts ``left_out``, rollouts ``merged`` into
    another's row, rollouts ``dropped``, rows with ``cut_prompts`` and ``cut_responses``, ``cut_tokens`` over all
    rows, sampled tokens taken out of the loss as ``unknown`` (each once, however many rows show it), and tokens
    ``repeated`` in rows of trees.

    Raises:
        ArgumentError: For columns of the wrong length or type, a parent, leaf, rollout, mask, split node or option that
            cannot be, a value that is not finite, an unknown log-probability, or a row beyond a limit; or a rollout
            that is not masked is of a tree without any token ids: ``tl.LLM(url, tokens=tl.TokenMode())`` grows trees
            with them.
    """

def pack_padded(
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    offsets: Buffer | Sequence[int],
    ids: Buffer | Sequence[int],
    logprobs: Buffer | Sequence[float],
    versions: Buffer | Sequence[int],
    flags: Buffer | Sequence[int],
    *,
    values: Buffer | Sequence[float] | None = None,
    per: Literal["rollout", "node", "token"] = "rollout",
    rollouts: Buffer | Sequence[int] | None = None,
    masked: Buffer | Sequence[int] | None = None,
    keep_masked: bool = True,
    splits: Buffer | Sequence[int] | None = None,
    unknown: Literal["error", "mask"] = "error",
    merge: bool = False,
    max_prompt: int | None = None,
    max_response: int | None = None,
    long_prompt: Literal["error", "cut", "drop"] = "error",
    long_response: Literal["error", "cut", "drop"] = "error",
    pad: int = 0,
) -> Padded:
    """Rollouts as rectangles: prompts padded on the left, responses on the right, as verl's trainer reads them.

    Arguments, rules and errors are those of :func:`pack_ragged`; ``pad`` is the token id beside the rows. The widths
    are the limits, or where there are none the longest prompt and the longest response.
    """

def pack_tree(
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    offsets: Buffer | Sequence[int],
    ids: Buffer | Sequence[int],
    logprobs: Buffer | Sequence[float],
    versions: Buffer | Sequence[int],
    flags: Buffer | Sequence[int],
    *,
    values: Buffer | Sequence[float] | None = None,
    per: Literal["rollout", "node", "token"] = "rollout",
    rollouts: Buffer | Sequence[int] | None = None,
    masked: Buffer | Sequence[int] | None = None,
    keep_masked: bool = True,
    splits: Buffer | Sequence[int] | None = None,
    unknown: Literal["error", "mask"] = "error",
    weights: Literal["share", "once", "count"] = "share",
    max_tokens: int | None = None,
    oversize: Literal["error", "split"] = "error",
) -> TreePacked:
    """Trees in rows: what rollouts share stands once, depth first.

    Arguments, rules and errors are those of :func:`pack_ragged`, except for limits and merging.

    * ``weights`` says what :attr:`TreePacked.weights` are: the share of the tree's exported rollouts that stand at the
      token, so that the weighted sum of token losses is the mean of the rollouts' sums; or 1; or how many they are.
    * Values of rollouts become their mean on what they share. That is the same loss where it is linear in the
      advantage: not where a ratio is clipped and the rollouts' advantages have both signs.
    * ``max_tokens`` limits the tokens of a row. Trees go from the largest to the smallest into the first row that has
      room (first-fit decreasing). If left out, each has a row of its own.
    * ``oversize`` says what to do about a tree that exceeds ``max_tokens``: refuse to pack, or split it between nodes.
      Each part then repeats the ancestors of its first node, with a weight and a loss mask of 0. A single path that
      exceeds ``max_tokens`` is always an ``ArgumentError``.
    """

@final
class Ragged:
    """B rows end to end: row i has the tokens ``offsets[i]:offsets[i + 1]``. Each read of a column makes a copy."""

    offsets: Final[memoryview]
    """u64 [B + 1]: where rows start (``cu_seqlens``)."""
    ids: Final[memoryview]
    """u32: token ids."""
    position_ids: Final[memoryview]
    """u32: place in the row, from 0."""
    loss_mask: Final[memoryview]
    """u8: 1 on what is trained."""
    logprobs: Final[memoryview]
    """f32: log-probabilities, finite; 0 where not sampled or not known."""
    versions: Final[memoryview]
    """i32: weight versions; -1 where not sampled or not known."""
    flags: Final[memoryview]
    """u8: flags of the tokens."""
    advantages: Final[memoryview]
    """f32: values; 0 where the loss mask is 0."""
    rollouts: Final[memoryview]
    """u32 [B]: the rollout a row stands for, or the first of them."""
    weights: Final[memoryview]
    """f32 [B]: how many rollouts a row stands for; 1 unless merged."""
    prompt_lengths: Final[memoryview]
    """u32 [B]: tokens of the prompt that are in the row."""
    lengths: Final[memoryview]
    """u32 [B]: tokens that are in the row."""
    cut_prompts: Final[memoryview]
    """u32 [B]: tokens of the prompt that were cut off on the left."""
    cut_responses: Final[memoryview]
    """u32 [B]: tokens of the response that were cut off on the right."""
    rows: Final[memoryview]
    """i32, one a rollout of the forest: its row; -1 where it has none."""
    report: Final[dict[str, int]]
    """What packing left out or changed; see :func:`pack_ragged`."""
    def unpack(self, row: int, /) -> TokenBuffer:
        """The tokens of a row as the forest has them, without what was cut off."""

@final
class Padded:
    """B rows of P + R tokens: prompts that end at place P, responses that start there. Each read makes a copy.

    Arrays of two dimensions are views of that shape; one with a side of 0 is one-dimensional and empty.
    """

    input_ids: Final[memoryview]
    """u32 [B, P + R]: token ids, and the pad id beside them."""
    prompts: Final[memoryview]
    """u32 [B, P]: the left part of ``input_ids``."""
    responses: Final[memoryview]
    """u32 [B, R]: the right part of ``input_ids``."""
    attention_mask: Final[memoryview]
    """u8 [B, P + R]: 1 on tokens, 0 on padding."""
    position_ids: Final[memoryview]
    """u32 [B, P + R]: tokens before this one; 0 on the left padding, on the right as at the last token."""
    flags: Final[memoryview]
    """u8 [B, P + R]: flags of the tokens, 0 on padding."""
    response_mask: Final[memoryview]
    """u8 [B, R]: 1 on what is trained."""
    logprobs: Final[memoryview]
    """f32 [B, R]: log-probabilities, finite; 0 where not sampled, not known, or padding."""
    versions: Final[memoryview]
    """i32 [B, R]: weight versions; -1 where not sampled, not known, or padding."""
    advantages: Final[memoryview]
    """f32 [B, R]: values; 0 where the response mask is 0."""
    rollouts: Final[memoryview]
    """u32 [B]: the rollout a row stands for, or the first of them."""
    weights: Final[memoryview]
    """f32 [B]: how many rollouts a row stands for; 1 unless merged."""
    prompt_lengths: Final[memoryview]
    """u32 [B]: tokens of the prompt that are in the row."""
    lengths: Final[memoryview]
    """u32 [B]: tokens that are in the row."""
    cut_prompts: Final[memoryview]
    """u32 [B]: tokens of the prompt that were cut off on the left."""
    cut_responses: Final[memoryview]
    """u32 [B]: tokens of the response that were cut off on the right."""
    rows: Final[memoryview]
    """i32, one a rollout of the forest: its row; -1 where it has none."""
    report: Final[dict[str, int]]
    """What packing left out or changed; see :func:`pack_ragged`."""
    def unpack(self, row: int, /) -> TokenBuffer:
        """The tokens of a row as the forest has them, without what was cut off."""

@final
class TreePacked:
    """Rows of trees: row i has the tokens ``offsets[i]:offsets[i + 1]``. Each read of a column makes a copy.

    All places (``parents``, ``subtree_ends``, starts and ends of segments) are tokens counted from the row's first, and
    segments are counted from the row's first segment. Token j attends to token i of its row if and only if
    ``i <= j < subtree_ends[i]``; this keeps the trees of a row apart as well. A segment is what one node has in a row.
    """

    offsets: Final[memoryview]
    """u64 [rows + 1]: where rows start."""
    ids: Final[memoryview]
    """u32: token ids."""
    position_ids: Final[memoryview]
    """u32: tokens before this one on its path; equal for siblings."""
    loss_mask: Final[memoryview]
    """u8: 1 on what at least one rollout trains, in the part of its tree where it is not repeated."""
    weights: Final[memoryview]
    """f32: as asked for, counting the rollouts that train a token where the loss mask is 1, else all that pass.

    0 where the token is repeated.
    """
    advantages: Final[memoryview]
    """f32: values, of rollouts their mean over those that train the token; 0 where the loss mask is 0."""
    logprobs: Final[memoryview]
    """f32: log-probabilities, finite; 0 where not sampled or not known."""
    versions: Final[memoryview]
    """i32: weight versions; -1 where not sampled or not known."""
    flags: Final[memoryview]
    """u8: flags of the tokens."""
    parents: Final[memoryview]
    """i32: the token before this one on its path; -1 for none."""
    subtree_ends: Final[memoryview]
    """u32: end of the tokens that see this one."""
    rows: Final[memoryview]
    """i32, one a rollout of the forest: its row; -1 where it is in none or has no tokens."""
    last_segments: Final[memoryview]
    """i32, one a rollout of the forest: the segment it ends in; -1 likewise."""
    segment_offsets: Final[memoryview]
    """u64 [rows + 1]: where the segments of rows start."""
    segment_nodes: Final[memoryview]
    """u32: the node whose tokens a segment has."""
    segment_starts: Final[memoryview]
    """u32: first token."""
    segment_ends: Final[memoryview]
    """u32: end."""
    segment_subtree_ends: Final[memoryview]
    """u32: end of what is below it."""
    segment_parents: Final[memoryview]
    """i32: the segment before it on the path; -1 for none."""
    segment_rollouts: Final[memoryview]
    """u32: exported rollouts that pass through it or end in it."""
    segment_repeated: Final[memoryview]
    """u8: 1 where the segment repeats one of another part of its tree."""
    report: Final[dict[str, int]]
    """What packing left out or changed; see :func:`pack_ragged`."""
    def unpack(self, rollout: int, /) -> TokenBuffer:
        """The tokens of a rollout of the forest, as the forest has them."""
