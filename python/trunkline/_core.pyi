"""The native core: the tree of one task, its lanes, request bodies and deltas.

Ids are unsigned 32-bit integers, stable for the life of a tree. Every failure raises a
``trunkline.errors.CoreError`` and changes nothing. A ``CoreTree`` has one writer at a time; any thread
may use it.

Columns of numbers are arguments with a one-dimensional buffer of the named type, in the byte order of this machine
(numpy arrays, a torch tensor's ``numpy()``, ``array.array``, ``memoryview``; bools for u8), or sequences where speed
does not matter. They are copied. Columns returned are ``memoryview`` objects with a format over memory of their own:
``numpy.asarray(view)`` and ``torch.from_numpy`` of that copy nothing.

Arguments of several functions:

* ``parents`` (u32): the parent of every node, a smaller number; a root's is itself.
* ``kinds`` (u8): the kind of every node, ``ROOT`` to ``MESSAGE``.
* ``leaves`` (u32): the last node of every rollout, in the order they were opened.
* ``offsets`` (u64): node n has the tokens ``offsets[n]`` to ``offsets[n + 1]``.
* ``ids`` (u32), ``logprobs`` (f32), ``versions`` (i32), ``flags`` (u8): columns of tokens as in ``TokenBuffer``.
* ``kept``, ``masked``, ``mask``, ``selected``: u8 or bool.
* ``seed``: an unsigned 64-bit integer; equal seeds and columns give equal results, for good.
* ``agent``, ``namespace``, ``finish``: ids of ``CoreTree.name``; a namespace is model, sampling parameters and
  weight version, and part of the merge key.
* ``retries``: attempts beyond the first; ``micros``: wall time in microseconds, kept with the rollout, in no digest.
* ``message``: one JSON object in UTF-8, as it is sent.
* ``context``: an id of ``CoreTree.context`` where what was sent is not the path; part of the merge key.

Functions over columns raise an ``ArgumentError`` for columns that do not fit each other, columns that make no forest,
and options out of range; functions over a tree a ``TreeError`` for an id that does not exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar, final

from typing_extensions import Buffer

__all__ = [
    "CURRENCIES",
    "DEBUG",
    "DIGEST_VERSION",
    "FORMAT",
    "GROWING",
    "HEAD_LIMIT",
    "MESSAGE",
    "OBSERVATION",
    "OLDEST_FORMAT",
    "PROMPT",
    "ROOT",
    "SAMPLED",
    "SYNTHETIC",
    "TRUNCATED",
    "TURN",
    "ActivityCounter",
    "BatchQueue",
    "CallRows",
    "CommitRows",
    "ConversationKeys",
    "CoreTree",
    "ExchangeTable",
    "Harvest",
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
    "ReplyOptions",
    "RequestReader",
    "Reuse",
    "RolloutView",
    "Search",
    "Tally",
    "TokenBuffer",
    "Transcript",
    "TreePacked",
    "TurnEngine",
    "__version__",
    "add_sums",
    "align_ids",
    "append_reply",
    "base_seed",
    "branch_probability",
    "branch_rows",
    "call_ids",
    "calls_of",
    "chain_sums",
    "check_column",
    "checksum",
    "choose_leaves",
    "deltas",
    "draw_points",
    "drift",
    "drift_of",
    "estimate",
    "finished_rows",
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
    "parts_digest",
    "presets",
    "read_reply",
    "request_head",
    "request_ids",
    "settle_ids",
    "split_evenly",
    "step_forest",
    "step_returns",
    "surprising_tokens",
    "to_i64",
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
"""Version of the format of deltas that ``CoreTree.delta`` writes; ``CoreTree.apply`` takes no later one."""
OLDEST_FORMAT: Final[int]
"""The first version that ``CoreTree.apply`` takes; its deltas have no calls."""
DIGEST_VERSION: Final[int]
"""Version of ``CoreTree.digest``: digests of two versions are never equal."""
GROWING: Final[int]
"""Stands in ``Harvest.terminations`` for a rollout that has not ended."""
HEAD_LIMIT: Final[int]
"""Most bytes of the head of an answer, and most that may come between two pieces of its body."""
ROOT: Final = 0
PROMPT: Final = 1
TURN: Final = 2
OBSERVATION: Final = 3
MESSAGE: Final = 4
SAMPLED: Final = 1
"""Flag of a token that the model sampled."""
SYNTHETIC: Final = 2
"""Flag of a token that was not sampled and is in no text: put in by a template or a bridge between turns."""
TRUNCATED: Final = 4
"""Flag of the last token of a text that was cut off."""
CURRENCIES: Final[tuple[str, ...]]
"""What budgets count: ``rollouts``, ``calls``, ``prompt`` and ``generated`` tokens, ``tokens`` of both kinds, ``tools``
(tool calls), ``micros`` (microseconds), ``micro_dollars`` (millionths of a dollar)."""

_Row = TypeVar("_Row")
_Waiter = TypeVar("_Waiter")

_Taken: TypeAlias = tuple[int, int, int, list[_Waiter]]
"""What a request is for: a leaf, the model turns before it, the first draw's seed, and what waits for each draw."""

_Turned: TypeAlias = tuple[
    tuple[int, int, int, int, int, int, int, int, int], str, int, list[tuple[_Waiter, Any]], PendingReply | None
]
"""A request whose choices are turns. First the figures of its call: draws; tokens of the prompt, of these cached,
generated (-1 where not known); attempts, 0 where its reply is that to an equal request; microseconds from asking to
sending, from sending to the head of the answer (-1 where it was not sent), and from asking to the end; and when it was
asked for. Then what the server says it ran, tokens that are estimated, each waiter with its turn or an error that says
what is wrong with it, and the reply where it is on no tree yet."""

_TurnedOf: TypeAlias = tuple[int, tuple[list[_Turned[_Waiter]], list[tuple[float, int]], list[dict[bytes, bytes]]]]
"""A target and its requests whose choices are turns; for each that was sent, seconds from sending to the end and the
tokens of a draw, 0 where not known; and the answers' headers where they are wanted."""

_Missed: TypeAlias = tuple[
    int, _Taken[_Waiter], tuple[float, float, float], tuple[int, dict[bytes, bytes], bytes] | None, tuple[str, str]
]
"""A request that brought no turns: its target, what it was for, seconds from asking to sending, from sending to the
head of the answer, and from sending to the end, the answer (status, headers, body), and the fault with its detail where
no answer came."""

@final
class TurnEngine(Generic[_Waiter]):
    """Which rollouts want a turn of a model, and the requests that are on their way for them. Does no I/O itself.

    A waiter is any object; it comes back with the outcome of its draw. ``now`` is in seconds of a monotonic clock.
    """

    def __new__(cls, choice: Any, call: Any, turn: Any, fault: Any, /) -> Self:
        """Take what makes a choice (content, reasoning, calls, finish), a call (id, name, arguments), a turn, an error.

        A turn is made of its choice, its node, and the bytes of its message; an error of what is wrong with a choice.
        """

    def model(self, siblings: bool, /) -> int:
        """Open the queue of a model; ``siblings`` says whether draws of one state may go out as one request."""

    def one_draw_each(self, model: int, /) -> None:
        """Ask a model's server for one draw a request from now on."""

    def agent(
        self,
        model: int,
        head: Buffer,
        constant: Buffer,
        reading: ReplyOptions,
        name: str,
        namespace: str,
        seeded: bool,
        greedy: bool,
        /,
    ) -> int:
        """Register an agent: what its requests have in common and how its turns are called.

        Equal requests of ``greedy`` ones are sent once.
        """

    def forget(self, agent: int, /) -> bool:
        """Forget an agent, unless a rollout waits for a turn of it; returns whether it is gone."""

    def target(
        self, origin: int, path: str, host: str, headers: Sequence[tuple[str, str]], session: Sequence[str], /
    ) -> int:
        """Register where requests can be sent; headers named in ``session`` say the tree's key."""

    def open(self, tree: CoreTree, seed: int, task: Buffer, key: int, /) -> int:
        """Register a tree of a run with a seed; ``task`` is its task's id in UTF-8, ``key`` names it to servers."""

    def close(self, tree: int, /) -> None:
        """Forget a tree."""

    def ask(self, tree: int, rollout: int, agent: int, waiter: _Waiter, kept: tuple[int, int] | None = None, /) -> int:
        """A rollout wants its next turn; ``kept`` is the turn whose first tokens it keeps, and how many."""

    def seed(self, tree: int, rollout: int, turns: int, /) -> int:
        """The seed of a rollout's turn that has so many model turns before it."""

    def ask_pending(
        self, tree: int, rollout: int, place: int, kind: int, turns: int, agent: int, waiter: _Waiter, /
    ) -> int:
        """A program wants a reply, which is read and put on the tree later by ``PendingReply.append_turn``.

        ``place`` is the node whose path is sent (``kind`` 0), a recorded context (1) or a draft (2); ``turns`` counts
        the model turns before this one.
        """

    def give_up(self, ask: int, /) -> tuple[list[_Waiter], int | None]:
        """A rollout does not wait any more: what waited for a request that ends with it.

        One that was handed out is returned instead, if nothing waits for it now.
        """

    def abandon(self, ask: int, table: ExchangeTable, now: float, /) -> tuple[list[_Waiter], tuple[int, bool] | None]:
        """A rollout does not wait any more: what waited for a request given up with it, its target, if it was sent."""

    def gather(self, model: int, now: float, /) -> list[int]:
        """Gather what was asked for; returns the keys of the trees whose requests wait in a model's queue."""

    def take(self, model: int, target: int | None = None, /) -> list[tuple[_Taken[_Waiter], float]]:
        """Take all requests out of a model's queue, or a target's, each with the moment when it was asked for."""

    def hand(self, model: int, now: float, /) -> list[tuple[int, int, _Taken[_Waiter], bytes]]:
        """Hand out all requests that wait for a model, to be answered or released.

        Each has its number, the key of its tree, what it is for, and its body.
        """

    def split(self, flight: int, draws: int, /) -> int:
        """Make the first draws of a request that was handed out a request of its own; returns its number."""

    def release(self, flight: int, /) -> list[tuple[_Taken[_Waiter], float]]:
        """Let go of a request that was handed out, and of what shares it; see ``take``."""

    def answer(
        self, answers: Sequence[tuple[int, bytes, float]], now: float, /
    ) -> tuple[list[_Turned[_Waiter]], list[tuple[int, str]], list[tuple[_Taken[_Waiter], float]]]:
        """Make turns of the bytes that answer requests which were handed out.

        Each has the moment at which a server was asked. Requests whose bytes are of no use come back with the reason;
        last are those that shared a request and cannot use its bytes, see ``take``.
        """

    def route(self, model: int, target: int, most: int, /) -> None:
        """Move the requests of a model that wait longest behind those that wait for a target."""

    def send(self, target: int, most: int, table: ExchangeTable, limit: float, now: float, /) -> int:
        """Send requests that wait for a target, each with ``limit`` seconds; returns how many."""

    def refused(self, token: int, now: float, /) -> _Missed[_Waiter]:
        """No connection could be made for a request."""

    def land(
        self, table: ExchangeTable, now: float, watched: bool, /
    ) -> tuple[
        list[tuple[int, int, dict[bytes, bytes], bytes, float]],
        list[tuple[int, str, str]],
        list[_TurnedOf[_Waiter]],
        list[_Missed[_Waiter]],
        list[tuple[_Taken[_Waiter], float]],
    ]:
        """Take out of a table what has come, and put replies onto their trees.

        The first two lists are of requests that others sent; see ``ExchangeTable.land``. The last is of what shared
        requests that brought no turns; see ``take``.
        """

    def act(
        self, table: ExchangeTable, now: float, /
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int, bytes | None, bool]], list[int], list[int], float | None]:
        """See ``ExchangeTable.act``; requests of this engine are whole, with bodies, or None where long."""

    def request(self, token: int, table: ExchangeTable, /) -> memoryview:
        """The bytes of a long request, in memory that another one gets when nothing holds them any more."""

    def recall(self, model: int, table: ExchangeTable, now: float, /) -> list[_Missed[_Waiter]]:
        """Give up all requests of a model that were sent."""

    def in_flight(self) -> tuple[int, float | None]:
        """How many requests are on their way, and when the oldest was sent."""

@final
class CoreTree:
    """Everything done for one task: nodes (message-level events), rollouts (tries), and the bytes they share.

    Node 0 is the root, an empty node that every prompt hangs under. A node's parent always has a smaller id.
    Appending what is already there merges: the same parent, kind, agent, namespace, context and token ids give the
    same node, whatever its bytes, and the first message stays; without ids, the same bytes do. What comes with ids and
    what comes without never merge. An empty run of tokens counts as none. Rollouts never merge.

    A column of tokens with an infinite log-probability, a version below -1 or an unknown flag is refused
    (``ArgumentError``).
    """

    def __new__(cls) -> CoreTree: ...
    def name(self, text: str, /) -> int:
        """Intern a short string (an agent, a finish reason, a namespace) and return its id; 0 is ``""``."""
    def append(
        self, parent: int, kind: int, message: Buffer, agent: int = 0, tokens: TokenBuffer | None = None, /
    ) -> int:
        """Append a ``PROMPT`` or ``MESSAGE`` that no rollout owns, with its tokens if known; see ``tokenise``."""
    def open(self, point: int, path: Sequence[int], subgroup: int = 0, /) -> int:
        """Open a rollout at a fork point and return its id (0, 1, 2, ...).

        ``path`` is the fork path, flattened (turn, draw, turn, draw, ...), unique in the tree; it orders the digest.
        ``subgroup`` is the initial chain that the rollout was expanded for.
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

        * ``message``: the assistant message as it will be sent again.
        * ``prompt``: prompt tokens the server reports, cached ones included; -1 where it reports none.
        * ``cached``: of these, cached tokens; -1 where not reported. Never counted beyond ``prompt``.
        * ``generated``: completion tokens; -1 where not reported. A call without ``prompt`` or ``generated`` counts as
          unreported and is in no total.
        * ``aside``: reasoning that is not sent again, in UTF-8.
        * ``tokens``: the sampled tokens with their uncertainty; tokens are never added to a turn later.

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

        Counts one tool call, also where the node merges. ``failed`` is counted with the rollout, in no digest and no
        merge key.
        """

    def observe_results(
        self, rollout: int, agent: str, turn: int, results: Sequence[tuple[str, bool, int]], /
    ) -> tuple[int, int]:
        """Append the results of a turn's tool calls, in call order, as messages that name the calls by their ids.

        ``turn`` counts the model turns before the one that made the calls; a result is its text, whether the tool
        returned, and microseconds. Returns the last node and the bytes of all messages.
        """

    def tell(self, rollout: int, message: Buffer, agent: int, tokens: TokenBuffer | None = None, /) -> int:
        """Append a ``MESSAGE`` at the rollout's leaf, move the leaf there, return the node; nothing is counted."""
    def tokenise(self, node: int, tokens: TokenBuffer, /) -> None:
        """Give a prompt, an observation or a message the tokens that a later reply reports for it, once.

        The node keeps its id and its merge key. An empty run says that the message has no tokens of its own. The same
        ids again change nothing; uncertainty is not kept.

        Raises:
            ArgumentError: If the node is the root or a model turn, or has other ids already.
        """

    def close(self, rollout: int, termination: str, answer: str | None = None, error: str | None = None, /) -> None:
        """End a rollout; raises if it has ended already.

        With ``"retried"``, one that has ended is noted as replaced by another draw; its answer and error stay.
        """
    def score(self, rollout: int, reward: float, /) -> None:
        """Set the reward of an ended rollout; NaN means unscored."""
    def note(self, rollout: int, text: str, /) -> None:
        """Replace the note of a rollout; "" removes it. In every delta and in no digest."""
    def mark(self, text: str, /) -> None:
        """Append a mark for a resumed run, behind everything done before. In every delta and in no digest."""
    def marks(self, first: int = 0, /) -> list[str]:
        """The marks in the order they were written, from number ``first`` on."""
    def state(self, node: int, /) -> tuple[list[int], int, int, int | None]:
        """``(path, turn, draw, subgroup)`` of the state at a node, for a fork there.

        A node is a state if a model turn follows it on the path of a rollout, if a rollout stands there that grows or
        was cut off (``censored``, ``cancelled``), if it ends the prompt, or if it is a ``MESSAGE`` behind a state. The
        path is that of the first rollout opened there, empty before the first turn; the subgroup is that rollout's,
        None before the first turn. ``draw`` is the next free one: the first draw of a state after a turn belongs to the
        rollout that came there.

        Raises:
            TreeError: There is no such node, or it is no state.
        """

    def fork(self, node: int, n: int, message: Buffer | None = None, subgroup: int | None = None, /) -> int:
        """Open ``n`` rollouts at the state at a node, its next draws, and return the id of the first.

        A ``message`` is put in behind the state, on their path. They belong to ``subgroup``; where it is None, to that
        of the state, and before the first turn each to one of its own.

        Raises:
            TreeError: There is no such node, it is no state, or no draw is left.
        """

    def fragment(self, message: Buffer, /) -> int:
        r"""Intern a message, or a piece of one, without making a node of it; for ``context``.

        A piece begins with a byte that is stored and never sent. ``b"\x02"`` opens a message, so ``{`` follows it;
        ``b"\x01"`` continues the message that the fragment before it belongs to. Together they are one JSON object,
        cut anywhere between two characters. A piece is UTF-8 without control characters.

        Raises:
            TreeError: It is neither a message nor a piece of one.
        """

    def context(self, fragments: Sequence[int], /) -> int:
        """Record an ordered list of fragments that was sent where it is not a path.

        An opening piece and the pieces behind it are one message. Digests depend on the messages alone; nodes merge
        where they were asked with equal lists, cut in the same way.

        Raises:
            TreeError: A fragment does not exist, or pieces make no whole message.
        """

    def request(self, node: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Join ``head``, the comma-separated messages from the root to ``node``, and ``tail``, in one allocation."""
    def draft(self, node: int, fragments: Sequence[int], /) -> int:
        """Note messages that are sent behind those of a path, and are on the tree only later, if at all.

        Raises:
            TreeError: The node or a fragment does not exist, or one is a piece of a message.
        """

    def forget_draft(self, draft: int, /) -> None:
        """Forget a draft, if it is known."""

    def request_draft(self, draft: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Like ``request``, with the messages of a draft behind those of its path."""
    def request_context(self, context: int, head: Buffer, tail: Buffer, /) -> bytes:
        """Like ``request``, over a recorded context of messages, whose pieces are joined."""
    def has_messages(self, context: int, /) -> bool:
        """Whether a recorded context has messages; one that only says how a prompt drifted from its path has none."""
    def messages(self, node: int, /) -> bytes:
        """The messages from the root to ``node`` as one JSON array."""
    def path(self, node: int, /) -> list[int]:
        """Nodes from the root's child to ``node``, in order; empty for the root."""
    def children(self, node: int, /) -> list[int]: ...
    def node(self, node: int, /) -> NodeView: ...
    def message(self, node: int, /) -> bytes: ...
    def aside(self, node: int, /) -> str | None:
        """The reasoning beside a model turn's message, or None."""
    def report(self, node: int, text: str, /) -> None:
        """Replace the report on the path to a node; "" removes it. In every delta and in no digest.

        Raises:
            ArgumentError: If it is the root.
        """

    def report_of(self, node: int, /) -> str | None:
        """The last report on a node, or None."""
    def tokens_of(self, node: int, /) -> TokenBuffer | None:
        """A copy of the node's tokens, with a turn's uncertainty; None where they are not known."""
    def rollout(self, rollout: int, /) -> RolloutView: ...
    def rows(
        self,
    ) -> tuple[int, str, tuple[int, int, int, int, int, int, bool], list[tuple[Any, ...]]]:
        """What the rows of the tree and of its rollouts are made of, in one crossing.

        Returns:
            The number of nodes, ``digest``, ``tokens``, and for each rollout the columns of its row
            (``trunkline.store.schema.RolloutRow``), with the first turn on its path, a node or None, in the place of
            the last one, and only the retries of calls that gave a reply.
        """
    @property
    def growing(self) -> list[int]:
        """Rollouts that have not ended, ascending."""
    @property
    def rollouts(self) -> int: ...
    def __len__(self) -> int: ...
    def tokens(self) -> tuple[int, int, int, int, int, int, bool]:
        """``(flat, tree, flat_generated, tree_generated, longest, unreported, exact)``.

        ``flat`` sums the tokens of every rollout's path; ``tree`` counts shared tokens once; both over prompt,
        observations and generation. flat >= tree >= longest, the longest path.

        ``exact``: these are counts of token ids, because every turn that a rollout passes has them, and so has all that
        its model was given; what no model was given, as the last observation of a rollout that ends there, counts as
        none. Where no turn is passed, every node that is passed must have ids. Then generated tokens are those with the
        flag ``SAMPLED``, and ``unreported`` is 0. Otherwise they are the servers' usage figures: the new part of a
        turn's prompt is what exceeds prompt and reply of the turn before it, shared by all turns asked at one node, and
        ``unreported`` model turns without usage are in no total.
        """

    def values(self) -> tuple[memoryview, memoryview, memoryview]:
        """Per node the rollouts that pass or end there (u32), scored ones among them (u32), and their mean reward V(s).

        V is f64, NaN without scored rollouts.
        """

    def shape(self) -> tuple[memoryview, memoryview, memoryview]:
        """``(parents, kinds, leaves)``, for ``fork_points`` and ``Search``."""
    def statistics(self) -> tuple[memoryview, memoryview, memoryview]:
        """Per node ``visits``, ``value`` and ``passes``, kept up to date at every step.

        ``visits`` (u32) are scored rollouts whose path holds the node, ``value`` (f64) is the sum of their rewards,
        ``passes`` (u32) are all rollouts that pass or end there. ``passes - visits`` are in flight (the virtual loss of
        a tree search) or failed.
        """

    def memory(self) -> int: ...
    def reset(self) -> None:
        """Forget everything but the root and keep the memory for the next task; deltas start again at number 0."""
    def digest(self) -> str:
        """32 hex digits over all rollouts in order of fork path: messages, terminations, answers, rewards.

        Ids, times and usage are left out, so that it is equal for any worker count and arrival order.
        """

    def delta(
        self,
        calls: Sequence[tuple[str, int, int, int, int, int, int, int, int, int, str]] = ...,
        tools: Sequence[tuple[int, str, bool, int, int]] = ...,
        /,
    ) -> bytes | None:
        """What changed since the last call, as one record with checksum and number.

        Args:
            calls: Model calls that travel with it, each in the order of ``trunkline.store.schema.CallRow``; they are in
                no tree and no digest.
            tools: Tool calls likewise, in the order of ``ToolRow``.

        Returns:
            The record; None if nothing changed and there are no calls.
        """
    def apply(self, delta: Buffer, /) -> bool:
        """Replay a delta of the same tree, whole or not at all. False if it was applied before.

        Afterwards this tree equals the writer's, ids included, and continues its deltas at the next number. Raises on a
        gap, damage, truncation, a delta of another tree or history, and on own changes that ``delta`` has not
        taken.
        """

    def check(self) -> None:
        """Walk every invariant; raises TreeError naming the first that fails."""

@final
class NodeView:
    """One node, as read."""

    parent: Final[int]
    """The node before it; the root is its own parent."""
    kind: Final[int]
    """``ROOT``, ``PROMPT``, ``TURN``, ``OBSERVATION`` or ``MESSAGE``."""
    depth: Final[int]
    turns: Final[int]
    """Model turns from the root to it, itself included."""
    agent: Final[str]
    namespace: Final[str]
    """Model, sampling parameters and weight version of a model turn; else empty."""
    finish: Final[str]
    """Why the model stopped; empty for what is no model turn."""
    prompt: Final[int | None]
    """Prompt tokens of a model turn as the server reported them; None where it did not."""
    generated: Final[int | None]
    """Completion tokens of a model turn, likewise."""
    context: Final[int | None]
    """Id of what was sent where that is not the path, as ``CoreTree.context`` gave it; else None."""
    entropy: Final[tuple[float, float, float]]
    """Mean entropy of a turn's tokens in nats in the regions think, tool call and all; NaN where not known."""
    perplexity: Final[tuple[float, float, float]]
    """Exponential of ``entropy``, as the reply gave it."""
    opening: Final[float]
    """What ``arpo`` divides: a sum of entropies in nats; NaN where not known."""
    def arpo(self, vocabulary: int, /) -> float:
        """ARPO's uncertainty of a turn, see ``ParsedChoice.arpo``; NaN if not known or for less than two tokens."""

    visits: Final[int]
    """Scored rollouts whose path holds the node."""
    value: Final[float]
    """The sum of their rewards."""
    passes: Final[int]
    """Rollouts that pass or end here, scored or not."""

@final
class RolloutView:
    """One rollout, as read."""

    point: Final[int]
    """The node it grew from."""
    leaf: Final[int]
    path: Final[tuple[int, ...]]
    """Its fork path, flattened: turn, draw, turn, draw, ..."""
    draw: Final[int]
    """Which sample of its fork point it is: the last number of its fork path, 0 if that is empty."""
    lane: Final[int | None]
    """Its lane while it grows, which is its id; None once it has ended."""
    subgroup: Final[int]
    termination: Final[str | None]
    """Why it ended; None while it grows."""
    answer: Final[str | None]
    error: Final[str | None]
    reward: Final[float]
    """Its reward; NaN while unscored."""
    note: Final[str | None]
    usage: Final[tuple[int, ...]]
    """What its own calls cost, in the order of ``trunkline.types.Usage``."""
    turns: Final[int]
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
    """Exponential of ``entropy``."""
    def __len__(self) -> int: ...

def base_seed(seed: int, task: str, path: Sequence[int], turn: int, /) -> int:
    """The base seed of a fork point, in ``[0, 2**31 - 2**16)``; draw i of it is sent with base + i.

    Args:
        seed: The run's.
        task: The task's id.
        path: Fork path of the rollout whose state it is, flattened (turn, draw, turn, draw, ...); empty before the
            first fork.
        turn: Model turns on the path to the state.
    """

def call_ids(key: bytes, number: int, /) -> tuple[str, int, str]:
    """How a draw of an agent's call is known.

    Args:
        key: The call's key.
        number: The number of the draw among those of equal calls.

    Returns:
        The key in hexadecimal digits, the turn in ``[0, 2**20)`` that its seed is made of, and the 32 hexadecimal
        digits that the ids of its reply are made of.
    """

@final
class ConversationKeys:
    """The hashes that the beginnings of a conversation are known by."""

    def __new__(cls) -> ConversationKeys: ...
    def add(self, form: bytes, raw: bytes, key: bytes | None = None, /) -> None:
        """Add a message by its form, and by the same without masks; and the hash up to it, if that is known.

        Raises:
            ValueError: The hash has not 16 bytes.
        """

    def key(self, messages: int, /) -> bytes:
        """The hash of the first so many messages, 16 bytes; empty for none of them, and for more than there are."""

    def raw(self) -> bytes:
        """The hash of all forms without masks, 16 bytes."""

def parts_digest(parts: Sequence[bytes], /) -> bytes:
    """The hash of some byte strings in their order, each behind its length in eight bytes, little end first.

    Returns:
        BLAKE2b of 16 bytes.
    """

def calls_of(
    delta: Buffer, /
) -> (
    tuple[list[tuple[str, int, int, int, int, int, int, int, int, int, str]], list[tuple[int, str, bool, int, int]]]
    | None
):
    """The model calls and the tool calls that came with a delta, as ``CoreTree.delta`` took them.

    Returns:
        Both lists; None of a delta of ``OLDEST_FORMAT``, which cannot tell.

    Raises:
        DeltaError: The delta is damaged.
    """

def deltas(
    trees: Sequence[tuple[CoreTree, list[Any], list[tuple[int, str, bool, int, int]]]], /
) -> list[tuple[bytes | None, int]]:
    """What changed in each tree, as ``CoreTree.delta`` with its calls, and how many of its rollouts have ended.

    The lists of calls are emptied.
    """

def checksum(rows: Iterable[Sequence[int | float | str | bytes | bytearray | None]], before: int = 0, /) -> int:
    """The checksum of rows, each a tuple or a list of values as SQLite returns them: CRC-32 of them as MessagePack.

    Args:
        rows: The rows.
        before: The checksum of the rows before them.

    Raises:
        TypeError: A value can be in no row.
    """

def chain_sums(rows: Sequence[tuple[Any, ...]], sums: dict[Any, int], /) -> list[Any]:
    """Continue the checksum of each row's task, its first value, with the other values.

    Returns:
        The tasks of rows that are not in ``sums``.
    """

def add_sums(rows: Sequence[tuple[Any, ...]], columns: int, sums: dict[Any, int], /) -> None:
    """Add the checksum of each row's first ``columns`` values to that of its task, the first; modulo 2**32."""

def finished_rows(
    finished: Sequence[tuple[int, list[Any], list[list[Any]]]],
    sums: Sequence[tuple[int | None, int | None]],
    taken: Mapping[int, Sequence[tuple[Any, ...]]],
    /,
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of finished tasks for ``trees`` and ``rollouts``, as they are bound: with NaN, stored as NULL, for None.

    Args:
        finished: The number of each task, the values of its tree, and those of its rollouts.
        sums: The checksums of each task's calls and tool calls.
        taken: Rows that were taken over, by task; they count for the checksum.
    """

@final
class CommitRows:
    """Rows of a commit, or the names that have no number yet."""

    endpoints: Final[list[str]]
    """Endpoints without a number, in which case there are no rows."""
    agents: Final[list[str]]
    """Agents without a number, likewise."""
    models: Final[list[tuple[int, ...]]]
    """Rows of model calls: all columns of ``calls`` but the first."""
    tools: Final[list[tuple[int | str, ...]]]
    """Rows of tool calls: all columns of ``uses`` but the first."""
    sums: Final[list[tuple[int, int]]]
    """For each task that finishes, the added checksums (CRC-32, modulo 2**32) of its model calls and its tool calls."""
    open: Final[tuple[int, int]]
    """The same of all unfinished tasks together."""
    totals: Final[tuple[int, int, int, int]]
    """Prompt tokens, generated tokens, retries and microseconds of all calls but those that a cache answered."""
    latencies: Final[list[float]]
    """Seconds of the last 512 calls that brought something."""
    tool_micros: Final[list[tuple[str, int]]]
    """Microseconds of tools, by name."""

@final
class CallRows:
    """Makes rows of calls from deltas, and adds up their checksums by task.

    Args:
        began: When the run began, in microseconds of the clock of its calls.
    """

    def __new__(cls, began: int, /) -> CallRows: ...
    def add_sums(self, task: int, models: int, tools: int, /) -> None:
        """Add to the checksums of an unfinished task: of rows that are in the file."""
    def rows(
        self,
        deltas: Sequence[tuple[int, int, bytes]],
        finished: Sequence[int],
        endpoints: Mapping[str, int],
        agents: Mapping[str, int],
        /,
    ) -> CommitRows:
        """Make the rows of a commit; a delta that cannot be read has none. Nothing is kept before ``keep``.

        Args:
            deltas: Task, number and bytes of each delta.
            finished: Tasks that finish with it.
            endpoints: Numbers of endpoints that were missing.
            agents: Numbers of agents that were missing.
        """
    def keep(self) -> None:
        """Note that the commit is in the file."""

@final
class Harvest:
    """Columns over trees side by side. N nodes, R rollouts, T tokens. ``parents`` and ``leaves`` are the shape."""

    parents: Final[memoryview]
    """Per node what its tokens come after (u32, N): its parent, or where a turn's prompt drifted, what is left.

    A root's is itself. A drifted turn (``drift``) has before its own tokens what the model was given in the
    place of its path. Where it forked it hangs below the root and has the whole prompt, none of it trained.
    """
    kinds: Final[memoryview]
    """Per node ``ROOT``, ``PROMPT``, ``TURN``, ``OBSERVATION`` or ``MESSAGE`` (u8, N)."""
    agents: Final[memoryview]
    """Per node its speaker, as a position in ``names`` (u32, N)."""
    names: Final[list[str]]
    """Names of agents, common to all trees; the first is empty."""
    offsets: Final[memoryview]
    """Node n has the tokens ``offsets[n]`` to ``offsets[n + 1]`` (u64, N + 1); a node without any has none."""
    ids: Final[memoryview]
    logprobs: Final[memoryview]
    """Log-probabilities in nats (f32, T); 0 where not sampled, NaN where not known."""
    versions: Final[memoryview]
    """Weight versions (i32, T); -1 where not sampled or not known."""
    flags: Final[memoryview]
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
    """Per rollout the position of its ending in ``trunkline.types.Termination``, or ``GROWING`` (u8, R)."""
    segment_leaves: Final[memoryview]
    """Samples that end before their rollout does, because a drifted prompt forked there: the node where (u32, S).

    Packed beside ``leaves``, with the values of ``segment_rollouts``, everything sampled is trained.
    """
    segment_rollouts: Final[memoryview]
    """Per such sample its rollout (u32, S)."""

@final
class PendingReply:
    """A reply that can become a turn; ``parse_reply`` makes it."""

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
        drift: tuple[str, int] | None = None,
        /,
    ) -> tuple[int, int, int, bool, int | None, int | None]:
        """Append the first choice as a rollout's next turn, and as a mark the record of the program that asked for it.

        * ``agent``: the speaker, which is the record's key.
        * ``sent``: the context of the turn. ``context``: the one the program asked with; None for its path.
        * ``nth``, ``asked``: earlier turns of the same agent, and of any, that the program had asked for.
        * ``leaf``: the end of its path when it asked.
        * ``how``: interned model and sampling parameters that it asked with.
        * ``note``: its note on the reply, as JSON. ``alone``: whether nothing else was under way.
        * ``drift``: policy and limit of ``settle_ids``, by which the ids of the prompt are settled where the reply
          was read as exact. A prompt of messages (``sent``) gives no node ids: what it has beyond the last turn's
          prompt and reply is kept with the turn. It goes on with that turn's sample if it begins with all of these, and
          else forks; without a turn before it, it realigns.

        Returns:
            ``(node, size, turns, first, prompt, generated)``: the turn's node, the bytes of its message, the model
            turns up to it, itself included, whether no other turn said the same there before, and the tokens of prompt
            and completion as first reported there.

        Raises:
            ArgumentError: The reply cannot be a turn, or the rollout has ended.
            TreeError: An id names nothing.
        """

def parse_reply(
    options: ReplyOptions,
    data: Buffer,
    turn: int,
    exact: bool = False,
    prompt: Buffer | Sequence[int] | None = None,
    /,
) -> tuple[
    PendingReply,
    tuple[list[tuple[str, str | None, list[tuple[str, str, str]], str, int, int, str]], int, int, int, str, int],
]:
    """Read the body of a completion whose first choice is to become a turn behind ``turn`` model turns.

    With ``exact`` its every token must be known: a choice without ids and log-probs is a fault, and so is one without
    ids of the prompt, unless ``prompt`` (u32) was sent as ids; then the reply may not name others.

    Returns:
        The reply, and the result of ``append_reply`` for its first choice, whose node is 0.

    Raises:
        ReplyError: The bytes are no chat completion.
    """

def harvest(trees: Sequence[CoreTree], /) -> Harvest:
    """Put trees side by side, as they are now, for estimators, selection and packing; numbered through, tree by tree.

    Raises:
        ArgumentError: A tree has more than 1048576 tokens side by side and more than 256 for each that it stores,
            because nodes or drifted prompts repeat the same tokens; or as many samples that end where a prompt forked.
    """

@final
class Prefix:
    """An exact radix tree over token ids, which stores what token paths share once, in all four columns.

    A node is a run of tokens after its parent's. Where a path ends or leaves inside a run, a new node above takes the
    head and the old one keeps the tail: an id keeps its path for good, until ``reset``. What is stored first stays:
    equal ids with other log-probabilities, versions or flags are the same tokens.

    Paths are counted: ``insert`` and ``fork`` add one, ``append`` moves one on; nothing takes one away.
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
            ArgumentError: No path ends there; ``fork`` makes one.
            TreeError: There is no such node, or as for ``insert``.
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

    def root(self, space: int, /) -> int: ...
    def node(self, node: int, /) -> PrefixNode: ...
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
    def memory(self) -> int: ...
    def reset(self) -> None:
        """Forget everything, spaces included, and keep the memory for what comes next. All ids are void."""
    def check(self) -> None:
        """Walk every invariant; raises TreeError naming the first that fails."""
    def __len__(self) -> int:
        """Nodes, the roots of spaces included."""

@final
class PrefixColumns:
    """Paths of a ``Prefix`` as a forest with tokens: N nodes, R paths, T tokens; columns as of ``Harvest``.

    Every space that has one of the paths is a tree, below a root without tokens. The columns of a forest are arguments
    of ``pack_tree`` in their order, and of its siblings.
    """

    parents: Final[memoryview]
    leaves: Final[memoryview]
    offsets: Final[memoryview]
    ids: Final[memoryview]
    logprobs: Final[memoryview]
    versions: Final[memoryview]
    flags: Final[memoryview]
    nodes: Final[memoryview]
    """Per node its id in the index (u32, N)."""

@final
class PrefixMatch:
    """The part of some ids that is in a ``Prefix``."""

    node: Final[int]
    """The last node of which something matches; the root where nothing does."""
    matched: Final[int]
    offset: Final[int]
    """How many tokens of ``node`` match: all of them, unless the ids leave it or end before its end."""

@final
class PrefixNode:
    """One node of a ``Prefix``, as read."""

    parent: Final[int]
    """The node before it; a root is its own. A split gives a node another parent, with a larger id."""
    space: Final[int]
    len: Final[int]
    """How many tokens are its own; 0 for a root only."""
    depth: Final[int]
    generated: Final[int]
    passes: Final[int]
    ends: Final[int]

@final
class Reuse:
    """What sharing saves, in tokens. flat >= unique >= longest, always.

    A token was generated if it was stored with the flag ``SAMPLED``.
    """

    paths: Final[int]
    flat: Final[int]
    """Tokens of every path, as if each were stored for itself."""
    unique: Final[int]
    flat_generated: Final[int]
    unique_generated: Final[int]
    longest: Final[int]
    ratio: Final[float]
    """Share of ``flat`` that did not have to be stored, 1 - unique / flat; 0 where nothing is."""
    ideal: Final[float]
    """``flat / unique``, the most that work proportional to tokens can gain; 1 where nothing is stored."""
    ideal_generated: Final[float]

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
    """The options of ``read_reply``, checked once; without ``ids`` token ids are dropped.

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
    agent: str,
    namespace: str,
    turn: int,
    retries: int,
    micros: int,
    node: int | None = None,
    context: int | None = None,
    drift: tuple[str, int] | None = None,
    kept: tuple[int, int, str] | None = None,
    /,
) -> tuple[list[tuple[str, str | None, list[tuple[str, str, str]], str, int, int, str]], int, int, int, str, int]:
    """Read the body of a completion and append its choices to a tree as turns, in one crossing.

    Choice i goes to rollout i; choices and rollouts left over stay as they are. The prompt of several choices counts as
    cached for all but the first, and so do retries. Generated tokens are those listed; where not every choice has them,
    the server's sum is shared out by the length of messages. ``turn`` is the number of model turns on the path before
    this one, which tool call ids are made of.

    With a ``node`` it replies to the conversation there, and every token must be known: a choice without token ids, or
    without a log-probability for each, makes no turn but a fault that says so; without ids of the prompt (where there
    is a ``drift``) none makes a turn. ``context`` is the drift of a prompt that was sent as ids (``request_ids``).
    ``drift`` is policy and limit for the ids of a prompt that the server made, see ``settle_ids``; without it a
    server that says it was given other ids than were sent is a fault. ``kept`` is ``(turn, tokens, text)`` where the
    prompt continued the first ``tokens`` of an earlier turn at ``node``, which say ``text``: the choices become whole
    turns that begin with them, as they were sampled then. The reply's own text and generated tokens do not include
    them.

    Returns:
        ``(choices, prompt, cached, generated, served, estimated)`` with -1 for figures that the server did not report;
        of ``generated``, ``estimated`` is as in ``ParsedReply``. Each choice is ``(content, reasoning, calls,
        finish, node, size, fault)``: calls as (id, name, arguments), the node of its turn and the bytes of its message.
        Where a choice cannot be a turn (more than 1000 tool calls, a message above 16 MiB with its reasoning, more than
        2**20 token ids, a rollout that has ended) its fault says why, and its node is -1.

    Raises:
        ReplyError: The bytes are no chat completion; the tree is unchanged.
        TreeError: A rollout has ended, or an id names nothing.
    """

def request_ids(tree: CoreTree, node: int, head: Buffer, tail: Buffer, context: int | None = None, /) -> bytes:
    """Join ``head``, the comma-separated ids that a model is given at ``node``, and ``tail``, in one allocation.

    They are the ids of the path, or of the ``context`` that is the drift of the turn asked for.

    Raises:
        ArgumentError: A node on the path has no ids, or the context is one of messages.
        TreeError: There is no such node or context.
    """

def last_ids(tree: CoreTree, node: int, most: int = 4294967295, /) -> memoryview:
    """The last ids that a model is given at ``node`` (u32), at most so many.

    Raises:
        ArgumentError: A node on the path has no ids.
    """

def align_ids(tree: CoreTree, node: int, prompt: Buffer | Sequence[int], /) -> tuple[int, int, list[int]]:
    """Compare the ids of a prompt (u32) with those that a model is given at ``node``, without copying them.

    Returns:
        ``(common, known, pending)``: ids in common at the beginning, ids of the path up to the first node without, and
        the nodes from there on. Where ``common`` is ``known``, the rest of the prompt belongs to the pending nodes.
    """

def settle_ids(tree: CoreTree, node: int, prompt: Buffer | Sequence[int], policy: str, limit: int, /) -> int | None:
    """Settle the ids (u32) of a prompt that was, or will be, sent for the conversation at ``node``.

    Ids beyond an equal path go to the last of the nodes without ids, none to those before. A prompt that drifts becomes
    a context (``drift``), by ``policy``: ``bridge`` keeps the path and takes from the prompt what comes after it,
    found behind the id that ended each turn (none did if the turn was cut, or says that id before); ``realign``, and a
    bridge that is not found, replaces the rest of the path, but if that is ``limit`` ids or more it forks; ``fork``
    always forks.

    Returns:
        The context for the turn; None where nothing drifted.

    Raises:
        ArgumentError: A model turn on the path has no ids, or there is no such policy.
    """

def give_ids(tree: CoreTree, node: int, ids: Buffer | Sequence[int], /) -> None:
    """Give ids (u32) to the nodes up to this one that have none: all to the last, none to those before.

    Raises:
        ArgumentError: A model turn on the path has no ids.
    """

def drift(tree: CoreTree, policy: str, keep: int, given: TokenBuffer | None = None, /) -> int:
    """Record that a prompt has only the first ``keep`` ids of its path; returns a context for ``CoreTree.turn``.

    With ``bridge`` a model is given the path there and below, with ``realign`` and ``fork`` its first ``keep`` ids and
    then ``given`` (None for a bridge, and only there); with ``fork`` a training sample of its own begins there.
    ``harvest`` makes samples of the ids given.

    Raises:
        ArgumentError: A value it cannot have.
    """

def drift_of(tree: CoreTree, node: int, /) -> tuple[str, int, TokenBuffer] | None:
    """``(policy, keep, given)`` of a turn whose prompt drifted, else None; ``given`` is empty for a bridge."""

@final
class ParsedReply:
    """What a reply says.

    Token figures are None where they are missing, and where they cannot be true: negative, no integer (12.0 is one),
    above 2**31 - 1.
    """

    choices: Final[tuple[ParsedChoice, ...]]
    """By their number, or as they came where the server numbers none; empty where it sent an empty list."""
    prompt: Final[int | None]
    cached: Final[int | None]
    """Of these, tokens the server had cached; never more than ``prompt``."""
    generated: Final[int | None]
    """Tokens of all choices; with ``estimated`` where the server counts the first of several alone."""
    estimated: Final[int]
    """Of these, tokens that are estimated: by length, from the first choice."""
    reasoning: Final[int | None]
    prompt_ids: Final[memoryview | None]
    """Token ids of the prompt (u32), of the reply or of its first choice that has any; None where none has."""
    served: Final[str]
    """The model and the fingerprint that the server names, each cut to 64 characters; empty for neither."""

@final
class ParsedChoice:
    """One completion."""

    index: Final[int]
    role: Final[str]
    """The speaker; empty where the server does not say."""
    content: Final[str]
    """The visible text, parts joined; without any, the refusal; else empty."""
    refusal: Final[str | None]
    reasoning: Final[str | None]
    """Reasoning that the server sends beside the text."""
    tool_calls: Final[list[tuple[str, str, str]]]
    """Its calls as (id, name, arguments), as they came: ids may be empty, arguments may be no JSON.

    Where there are none, the ``function_call`` of older servers.
    """
    finish: Final[str]
    """``stop``, ``length``, ``tool_calls``, ``content_filter`` or what was sent; empty for nothing."""
    tokens: Final[TokenBuffer]
    """The sampled tokens, none where the server gives no ids, with the uncertainty of the choice in any case.

    Their log-probabilities are ``logprobs`` where the choice is ``aligned``, else NaN. The last token of a
    choice that was cut off (``length``) is ``TRUNCATED``. The same object at each access.
    """
    has_ids: Final[bool]
    aligned: Final[bool]
    """Whether the server gave one log-probability for each id.

    False where it gave only one of the two, and where it listed some of the tokens only: some servers list none of
    a tool call. Ids and log-probabilities then stand for themselves, and uncertainty is of what was listed.
    """
    logprobs: Final[memoryview | None]
    """Log-probabilities (f32) in nats of the tokens that the server lists, or None.

    From -9999, which stands for zero probability and whatever is below, to 0; NaN where the server does not know
    one. How many there are is up to the server: see ``aligned``.
    """
    entropies: Final[memoryview | None]
    """Entropies (f32) in nats of the same tokens; NaN where not known."""
    def arpo(self, vocabulary: int, /) -> float:
        """ARPO's uncertainty for a vocabulary of this many tokens; NaN where no likeliest tokens are listed.

        ``-sum(p ln p)`` over the ten likeliest tokens at each of the first twenty places, all in one sum, over
        ``ln(vocabulary)``.
        """

    def message(self, turn: int, /) -> bytes:
        """The message for the history in canonical bytes, as ``trunkline.llm.messages.assistant`` writes it.

        ``turn`` is the index of the model turn on its path, below 36**4, which the ids of its calls are made of.

        Raises:
            ArgumentError: There is no id for a call.
        """

@final
class ActivityCounter:
    """The activity of each of any number of rollouts, for batches that wait until no rollout can add to them.

    A lane is a number that is never given twice. It runs, asks, or is away (in a tool), until it ends; nothing has an
    effect on an ended lane.

    Raises:
        ArgumentError: From every method that takes a lane: it was never opened.
    """

    def __new__(cls) -> ActivityCounter: ...
    def open(self) -> int:
        """Add a lane that runs, and return it."""
    def run(self, lane: int, /) -> None:
        """The lane runs again."""
    def ask(self, lane: int, /) -> bool:
        """The lane asks, and waits. True if it was the last that ran."""
    def leave(self, lane: int, /) -> bool:
        """The lane is away and will ask again at an unknown time. True if it was the last that ran."""
    def end(self, lane: int, /) -> bool:
        """End the lane. True if none runs now: it was the last, or the others waited for one away."""
    @property
    def running(self) -> int: ...
    @property
    def asking(self) -> int: ...
    @property
    def away(self) -> int: ...

@final
class BatchQueue(Generic[_Row]):
    """The rows that wait for a batch engine, and when a batch of them leaves. A row is any object.

    Rows of one model share a batch of at most ``most`` completions; ``fuse`` says whether those of different roles do,
    ``regroup`` whether those of different steps do. A row leaves once: in a batch, or dropped. Times and waits are in
    seconds of one monotonic clock.
    """

    def __new__(cls, most: int, max_wait: float, away_wait: float, fuse: bool, regroup: bool, /) -> Self: ...
    def add(self, row: _Row, model: str, role: str, step: tuple[int, int], n: int, now: float, /) -> int:
        """Add a row that asks for ``n`` completions, and return its number.

        ``step`` is the row's step, and how often it asked the role before in it.
        """

    def drop(self, numbers: Sequence[int], /) -> None:
        """Drop rows by their numbers; those that have left are ignored."""
    def clear(self) -> list[_Row]:
        """Drop all rows, and return them."""
    def freed(self, now: float, /) -> None:
        """The engine has ended a call; rows that are here wait for others from now on."""
    @property
    def full(self) -> bool:
        """Whether some rows fill a batch."""
    def next(self, now: float, calls: int, running: int, away: int, /) -> tuple[list[list[_Row]], float | None]:
        """Take at most ``calls`` batches that are due, longest due first, and say when the next one is.

        A batch is due at once if it is full, or if no lane is ``running`` or ``away``; after the shorter wait if none
        runs and some are away, after ``max_wait`` if some run. Once no lane runs, all rows that are due are called:
        they follow one another though lanes run by then. The time is None where nothing waits, or no call is left.
        """

    def __bool__(self) -> bool:
        """Whether a row waits."""

@final
class Refusal:
    """Why a budget refuses something; its ``str`` says what is short."""

    currency: Final[str]
    """The scarcest of ``CURRENCIES``."""
    wanted: Final[int | None]
    """The amount asked for; None without an upper bound."""
    left: Final[int]
    limit: Final[int]
    """The limit; 2**64 - 1 without a limit, when the counter is full."""
    text: Final[str]

def request_head(target: str, host: str, headers: Sequence[tuple[str, str]], /) -> bytes:
    """Encode what all POST requests to one target have in common: the head up to the length of the body.

    Args:
        target: Path and query.
        host: The value of Host.
        headers: Everything beyond Host and Content-Length; a User-Agent is added where there is none.

    Raises:
        ArgumentError: One of them holds a character that has no place there.
    """

@final
class RequestReader:
    """Reads the requests that one connection of a server brings, one after the other: HTTP/1.1 and 1.0 without sockets.

    Args:
        most: Most bytes of a body.
        wanted: Names of headers in lower case: those whose values ``take`` gives.
    """

    def __new__(cls, most: int, wanted: Sequence[str]) -> RequestReader: ...
    def feed(self, data: Buffer, /) -> int:
        """Take bytes; those behind a whole request are kept for the next, of which ``feed(b"")`` tells after a take.

        Returns:
            0 while the head is not whole, 1 while the body is not, and 2 when the request is whole.

        Raises:
            ValueError: They are no request that can be served. Its arguments are the status to answer with (400, 413,
                417, 431, 501 or 505) and what is wrong, without any of the bytes. From then on always the same.
        """

    def take(self) -> tuple[str, str, bytes, bool, tuple[str | None, ...]]:
        """Take out the request that is whole.

        Returns:
            The method; the target as it was sent, printable ASCII; the body; whether the connection may bring another
            request after it, which one of HTTP/1.0 may not; the values of the wanted headers in Latin-1, of equal names
            the first.

        Raises:
            ValueError: No request is whole.
        """

    @property
    def expects(self) -> bool:
        """Whether the client waits for 100 (Continue), and has sent nothing of the body."""

    @property
    def target(self) -> str:
        """The target as it was sent, once the head is whole; empty before."""

    @property
    def size(self) -> int | None:
        """Bytes of the body as a whole head announces it, 0 without a body; None if it comes in chunks."""

    @property
    def held(self) -> int:
        """Bytes kept of a request that is not whole, or behind the one that is."""

@final
class ExchangeTable:
    """All requests of a client that have no answer yet, and its connections: HTTP/1.1 without sockets and a clock.

    Requests have numbers of their senders (tokens), connections numbers of the table (slots). Of a request the table
    holds the head and the length of its body: whoever sends keeps the body until it lands or fails. Times are seconds
    on any clock that never goes back. Methods that return a bool say whether ``tick`` has something to give.

    Args:
        size: Most connections to one origin.
        largest: Most bytes of a body.
        connect: Seconds to establish a connection.
        accepted: Seconds until a new connection whose request was not even acknowledged is given up.
        keep: Seconds that a connection is kept without a request.
        idle: Seconds of silence in the middle of an answer, and the longest time between two looks at a connection.
        patience: Seconds that a new connection may bring nothing while kept ones have nothing to do, or are served
            before it.
        crowded: Seconds for which a server is believed to hold a thread for each kept connection, with too few of
            them.
    """

    def __new__(
        cls,
        size: int,
        largest: int,
        *,
        connect: float,
        accepted: float,
        keep: float,
        idle: float,
        patience: float,
        crowded: float,
    ) -> ExchangeTable: ...
    def add_origin(self, *, encrypted: bool) -> int:
        """Add somewhere to connect to; a connection that is made and ``encrypted`` has been accepted by the server."""

    def send(self, token: int, origin: int, head: Buffer, size: int, limit: float, now: float, /) -> None:
        """Send a request: on the idle connection used last, on a new one, or when one is free.

        Args:
            token: Its number, which no other request has that has no answer yet.
            origin: Where to.
            head: What ``request_head`` gave.
            size: Bytes of its body.
            limit: Seconds for all of it.
            now: The present.
        """

    def cancel(self, token: int, now: float, /) -> bool:
        """Forget a request: it neither lands nor fails, and is not written if it was not."""

    def close(self, now: float, /) -> bool:
        """Fail every request, also later ones, and close every connection."""

    def opened(self, slot: int, now: float, /) -> bool:
        """A connection was made."""

    def unopened(self, slot: int, now: float, /) -> int | None:
        """A connection was not made; returns the token of the request that fails with it, if there still is one."""

    def feed(self, slot: int, data: Buffer, now: float, /) -> bool:
        """A connection brought bytes."""

    def eof(self, slot: int, now: float, /) -> bool:
        """The other side of a connection sends nothing more."""

    def lost(self, slot: int, reason: str | None, now: float, /) -> bool:
        """A connection that was made is closed; always the last word about it."""

    def unsent(self, slot: int, /) -> bool:
        """Bytes of a request are still to be sent while its answer is whole."""

    def unasked(self, slot: int, now: float, /) -> bool:
        """A connection has brought something, or is closed, before its request was written."""

    def unacknowledged(self, slot: int, count: int, now: float, /) -> bool:
        """So many bytes of its request a connection has not acknowledged: the answer to one of the ``checks``."""

    def land(
        self, now: float, /
    ) -> tuple[list[tuple[int, int, dict[bytes, bytes], bytes, float]], list[tuple[int, str, str]]]:
        """Take out what has come.

        Answers are token, status, headers by their names in lower case, body, and seconds from sending to the head;
        requests that get none are token, the name of the fault, and its detail.
        """

    def act(
        self, now: float, /
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int, bytes | None, bool]], list[int], list[int], float | None]:
        """Take out what is to be done with sockets.

        Connections to open with their origins; requests to write, as slot, token, head (always there), and whether the
        connection was used before; connections to check; connections to close; and when to come back.
        """

    def held(self, origin: int, /) -> int:
        """Connections to an origin that are there, being made or being closed."""

@final
class Ledger:
    """A budget and everything that draws on it, in eight ``CURRENCIES``.

    Amounts are dictionaries from currencies to numbers of 0 to 2**64 - 1; missing ones are 0. A cost is reserved at its
    bound before it starts and settled at its actual amount. In every currency with a limit
    ``spent + reserved + leased <= limit + overshoot``.

    Args:
        limits: The most of each currency that may be spent; missing ones and None are unlimited.
        spent: Spending of an earlier part of the run, as its rows say.
        estimated: The part of ``spent`` that was only estimated.
    """

    def __new__(
        cls,
        limits: dict[str, int] | dict[str, int | None] | None = None,
        spent: dict[str, int] | None = None,
        estimated: dict[str, int] | None = None,
    ) -> Ledger: ...
    def reserve(self, most: dict[str, int] | dict[str, int | None], /) -> int | Refusal:
        """Reserve the most that something can cost; returns the number of the reservation, or a refusal.

        For n draws that is n times the token limit of a reply. None says that there is no bound, which is refused where
        the currency has a limit.
        """

    def settle(self, reservation: int, actual: dict[str, int], /) -> None:
        """Count an actual cost, which may exceed its reservation, and return the rest; raises the second time."""
    def release(self, reservation: int, /) -> None: ...
    def lease(self, parts: int, least: dict[str, int] | dict[str, int | None], /) -> tuple[int, Ledger] | Refusal:
        """Lease one of ``parts`` equal parts of what is left, rounded up, but no less than ``least``.

        Leases shrink near the limit. The lease's ledger has the leased amounts as its limits; currencies without a
        limit have none there either. Refused if less than ``least`` is left.
        """

    def take_back(self, lease: int, spent: dict[str, int], /) -> None:
        """Take back a lease with nothing in flight, with the spending of its ledger; raises the second time.

        A lease with open reservations (``open`` of its ledger is not 0) is for ``settle_lost``.
        """

    def settle_lost(self, lease: int, durable: dict[str, int], unacknowledged: dict[str, int], /) -> None:
        """Take the lease of a dead worker back; raises the second time.

        ``durable`` is its known spending; ``unacknowledged`` was reserved for calls of unknown outcome and counts as
        spent and estimated.
        """

    @property
    def limits(self) -> dict[str, int]: ...
    @property
    def left(self) -> dict[str, int]:
        """Amounts that can still be reserved or leased of the currencies that have a limit."""
    @property
    def spent(self) -> dict[str, int]:
        """Spending, estimates included."""
    @property
    def estimated(self) -> dict[str, int]:
        """The estimated part of ``spent``."""
    @property
    def overshoot(self) -> dict[str, int]:
        """Cost beyond reservations and leases, in the currencies that have a limit."""
    @property
    def reserved(self) -> dict[str, int]: ...
    @property
    def leased(self) -> dict[str, int]:
        """Amounts of open leases, in the currencies that have a limit."""
    @property
    def open(self) -> int: ...

@final
class Transcript:
    """The transcript of a team's members in one rollout, as pieces of its tree, and the prompts made of it."""

    def __new__(cls, tree: CoreTree, /) -> Transcript: ...
    def add(self, member: int, before: Buffer, text: str, after: Buffer, /) -> int:
        """Keep a text of a member (numbered from 0) between two pieces of JSON, and return its piece.

        Raises:
            ArgumentError: The text holds lone surrogates.
            TreeError: It is no piece of a message.
        """

    def clear(self) -> None: ...
    def frame(self, member: int, parts: Sequence[Sequence[bytes]], sees: Sequence[int] | None, /) -> None:
        """Set the messages, and pieces of such, of a member's prompt; the transcript stands between any two ``parts``.

        ``sees`` are the members whose part of the transcript it sees; None for all.

        Raises:
            TreeError: One is neither a message nor a piece of one.
        """

    def prompt(self, member: int, /) -> int:
        """Record a member's next prompt, and return its context.

        Raises:
            ArgumentError: The member has no frame.
            TreeError: A fragment does not exist, or pieces make no message.
        """

@final
class Tally:
    """WeightedVote votes, counted in the order in which they are given.

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
        """The winning answer so far."""
    @property
    def runner_up(self) -> int | str | None:
        """The answer that would win without the leader."""
    @property
    def margin(self) -> float:
        """Weight of the leader minus that of the runner-up; 0 without a runner-up."""
    @property
    def abstained(self) -> int: ...
    def settled(self, tries: int, heaviest: float = 1.0, /) -> bool:
        """Whether the leader stays ahead if all remaining ``tries`` agree with the runner-up or a new answer.

        A possible tie is not settled while a try remains, and neither is a margin within the rounding of the sums. No
        remaining vote weighs more than ``heaviest``.
        """

@final
class Search:
    """A tree search over a forest: statistics of every node, and the picks in flight.

    Scores are upper confidence bounds. With V a node's mean reward, N its visits and Np those of its parent:

    * ``"uct"``: ``(V + offset + 1e-8) / 2 + c * sqrt(ln(Np + 1) / (N + 1e-10))``, as in TreeRL, where ``offset`` is 1,
      for rewards from -1 to 1, and ``c`` is 0.5 in training;
    * ``"ucb1"``: ``V + c * sqrt(ln(Np) / N)``, infinity where N is 0; the textbook has the root of 2 for ``c``.

    A visit in flight counts in all three as one with the reward ``loss`` (virtual loss), so that parallel picks spread.
    Of equal nodes the one that an earlier rollout passes wins; where no rollout passes, the smaller number.

    For a tree: ``parents, _, leaves = tree.shape()`` and ``_, visits, values = tree.values()``.

    Args:
        parents: Parent of every node (u32).
        visits: Scored rollouts through every node (u32).
        values: Their mean reward (f64); not read where there are none.
        leaves: The last node of every rollout (u32); without them picks depend on the speed of parallel rollouts.
        in_flight: Picks through every node that have not been scored yet (u32); none if left out.
        formula: ``"uct"`` or ``"ucb1"``.
        c: Weight of exploration; 0 or more.
        offset: Added to V by ``"uct"``.
        loss: The reward of a visit in flight.

    Raises:
        ArgumentError: If columns do not fit, or a visited node's value or an option is not from -1e100 to 1e100.
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
        """The score of each node against its siblings (f64); infinity for roots."""
    @property
    def in_flight(self) -> memoryview:
        """Picks in flight through each node (u32), those of ``descend`` included."""
    def descend(self, room: Buffer | Sequence[int], k: int, *, start: int = 0) -> memoryview:
        """Pick ``k`` nodes to expand (u32), each by descending from ``start``; fewer where room is short.

        A descent ends at the first node with room (u32, children every node may still get), else continues to the child
        with the highest score; subtrees without room are never entered. Each pick takes one place and is in flight on
        its whole way from then on.

        Raises:
            ArgumentError: If ``room`` has another length, there is no node ``start``, or there would be more than
                4,096 picks.
        """

    def __len__(self) -> int: ...

def fork_points(
    parents: Buffer | Sequence[int], kinds: Buffer | Sequence[int], leaves: Buffer | Sequence[int]
) -> memoryview:
    """Return the fork points on the paths of rollouts (u32): nodes after which one took a model turn.

    These are the prompt and the last observation of every step that another step follows, rollout by rollout, each from
    the root down, so that a draw from them does not depend on arrival. ``fork_points(*tree.shape())`` are those of a
    whole tree; ``leaves`` may be those of one subgroup.
    """

def draw_points(points: Buffer | Sequence[int], k: int, seed: int, *, replace: bool = False) -> memoryview:
    """Draw ``k`` of ``points`` (u32), each as likely as any other, in the order drawn (u32).

    With ``replace`` a point may come twice, as in Tree-GRPO.

    Raises:
        ArgumentError: If there are too few points: fewer than ``k`` without ``replace``, none with it; or if ``k`` is
            above 16,777,216 with it.
    """

def top_turns(
    perplexities: Buffer | Sequence[float], k: int, *, region: str = "tool", duplicates: bool = False
) -> memoryview:
    """Return the ``k`` most uncertain turns (u32), most uncertain first, the earlier of equal ones.

    A turn of unknown perplexity is never picked: fewer come back where too few are known. ``perplexities`` (f32) are
    three numbers a turn, in the order of ``TokenBuffer.perplexity``; NaN where not known. ``region`` is
    ``"think"``, ``"tool"`` or ``"all"``; or ``"mixed"``: half of the picks, rounded up, by ``"tool"`` and the rest by
    ``"think"``. With ``duplicates`` ``"mixed"`` picks a turn twice that leads both lists, as ParallelMuse does, else
    the next one.

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

    ``cuts`` (u32) are tokens at the start of every node that may be sampled again, up to a word that announces the
    answer; all if left out. ``diverse`` spreads the picks: out of the 2k most surprising, the first and then always the
    one farthest from all taken. Tokens of different nodes are farther apart than any of one. ``leaves`` may be of one
    subgroup.

    Returns:
        The node, and the index of the token in it (both u32); most surprising first. Of equal ones the one that an
        earlier rollout passes first, then the earlier token.

    Raises:
        ArgumentError: If columns do not fit, a log-probability of a candidate is positive, or ``k`` is above 4,096 with
            ``diverse``.
    """

def branch_probability(
    change: float, *, rule: str = "arpo", probability: float = 0.5, weight: float = 0.2, streak: int = 0
) -> float:
    """Return the probability of a branch after a change of entropy (now less at first).

    ``"arpo"`` is ``clip(probability + weight * change, 0, 1)``; ``"aepo"`` is ``clip(1 - probability / f + weight *
    change, 0, 1)`` with ``f = max(0, 1 - 0.05 * streak)``, and 0 where f is 0. ``streak`` is the number of rounds in a
    row in which the task has branched.

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

    Rows have their turn in the order given, with ``beam - 1`` attempts each, and use as many random numbers in any
    case, so that no row's luck depends on another's entropy.

    * ``entropies``: of each row in this round (f64); one that is NaN does not branch.
    * ``baselines``: the first entropy known of each row (f64); NaN where this is the first: it has not changed.
    * ``free``: places left for rollouts of the task.
    * ``rule``, ``probability`` (0 to 1), ``weight``: as for ``branch_probability``.
    * ``beam``: rows that one row may become in a round, itself included; 1 to 4,096.
    * ``streak``: the last streak returned for this task; 0 at first.

    Returns:
        Branches of each row (u32), and the streak: rounds in a row with a branch, this one included.

    Raises:
        ArgumentError: If columns have different lengths, an entropy is infinite or beyond 1e100, or an option is out of
            range.
    """

def initial_chains(total: int, root: float, tool: Buffer | Sequence[float]) -> int:
    """Return how many of ``total`` rollouts start from scratch, the rest being kept for branches.

    AEPO's ``floor(n * sigmoid((root - mean(tool)) / 2)) + 1``, at most n: ``root`` is the entropy of the answer to the
    bare question, ``tool`` are entropies after tool calls (f64).

    Raises:
        ArgumentError: If ``total`` is 0, ``tool`` is empty, or an entropy is not finite.
    """

def choose_leaves(
    correct: Buffer | Sequence[int], k: int, seed: int, *, choice: str = "random", ratio: float | None = None
) -> memoryview:
    """Choose ``k`` leaves to keep, none twice; their indices (u32) in the order chosen.

    ``correct`` says whether each leaf's answer is correct (u8 or bool). ``choice`` is ``"random"``;
    ``"first_correct"``: a correct one if there is any, then random others; or ``"balanced"``: ``floor(k * ratio)``
    correct and as many wrong ones as far as there are such, then random others. ``ratio`` is from 0 to 0.5, for
    ``"balanced"`` alone; 0.5 if left out.

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

    ``floor(B / I) - 1 - b T`` for a ``budget`` of B rollouts, I initial ones, b turns that each was ``branched`` at in
    all rounds together (u32) and T ``samples`` of each turn; the remainder of B divided by I is not spent.

    Raises:
        ArgumentError: If the budget is less than ``I (1 + K R T)`` for K = ``top_k`` and R = ``rounds``, an option
            is 0, ``branched`` is empty, or a b is above ``K R``.
    """

def presets() -> dict[str, dict[str, str | float | bool]]:
    """Every estimator by name: where its values land (``lands``: ``rows`` or ``nodes``) and its options.

    A preset named after a framework does what that framework does; ``docs/reference/estimators.md`` says where each
    comes from. Options:

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

    Values land where they are asked for. ``estimate`` gives them per row, or per node where
    ``presets()[preset]["lands"]`` is ``"nodes"``; ``to_nodes`` takes those of rollouts to nodes, and
    ``to_tokens`` either to tokens::

        parents, leaves = step_forest(h.parents, h.kinds, h.leaves)  # of h = harvest(...)
        trees = {"parents": parents, "leaves": leaves}
        rows, kept = estimate("tree_grpo", h.rewards, group=h.groups, subgroup=h.subgroups)
        nodes, kept = to_nodes(rows, kept=kept, **trees)
        nodes, kept = estimate("treerl_code", h.rewards, **trees)  # a preset that lands on nodes
        tokens, mask = to_tokens(nodes, h.offsets, kept=kept, flags=h.flags)

    Args:
        preset: A key of ``presets``.
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
        trajectory: As for ``estimate``, like ``masked`` and ``tokens``.
        masked: Rows that train nothing.
        tokens: Trained tokens of each row.
        options: As of ``presets`` but for ``scopes``. Defaults: GRPO as verl has it (``std``, ``ddof=1``,
            ``eps=1e-6``), with 0 for a row that is alone.

    Returns and errors are those of ``estimate``, one element a row.
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

    * ``rewards``: one a rollout (f64); for ``discounted`` one a node.
    * ``backup``: ``leaf_mean`` (the mean over rollouts that pass or end there; the default), ``child_mean`` (the mean
      over children; a rollout that ends there counts as a child), or ``discounted``:
      ``sum_c N_c (R_c - R_s + gamma V_c) / sum_c N_c`` over children c, the node's own reward without children.
    * ``visits``: N for ``discounted`` (u32), one a node; left out, the number of rollouts that pass.
    * ``gamma``: discount for ``discounted``, 0 to 1.

    Raises:
        ArgumentError: For columns that do not fit each other, no forest, an infinite reward, or another backup.
    """

def step_forest(
    parents: Buffer | Sequence[int], kinds: Buffer | Sequence[int], leaves: Buffer | Sequence[int], /
) -> tuple[memoryview, memoryview]:
    """Parents (u32, N) and leaves (u32, R) of the forest of steps, for estimators of credit by step.

    Nodes keep their numbers. A turn hangs under the turn before it on its path, or under its root, and a rollout ends
    at its last turn, so that the number of messages or tool calls changes no value of a turn. Prompts and observations
    have no children and end no rollout; their own values are NaN. Trees may be side by side.

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
    """``r + gamma * G(next step)`` of every row (f64) within its trajectory (u32); trajectories may be interleaved.

    ``rewards`` (f64) are one a row; of rows with one step that of the first counts, and NaN makes NaN of all returns
    before it. ``step`` (u32) is never smaller than in an earlier row of the trajectory; left out, every row is a step
    of its own. ``gamma`` is from 0 to 1.

    Raises:
        ArgumentError: For columns of different lengths, an infinite reward, an impossible discount, or a step that
            comes after a later one.
    """

def to_nodes(
    values: Buffer | Sequence[float],
    parents: Buffer | Sequence[int],
    leaves: Buffer | Sequence[int],
    *,
    kept: Buffer | Sequence[int] | None = None,
) -> tuple[memoryview, memoryview]:
    """Advantages of rollouts (f64) on the nodes they share (f64), and whether a node is kept (u8).

    A node has the mean over kept rollouts that pass or end there; times their number that is what they would train it
    with one by one. A rollout that is NaN is in no mean, and a node without any other gets NaN and 0. All rollouts are
    kept if ``kept`` is left out.
    """

def to_tokens(
    values: Buffer | Sequence[float],
    offsets: Buffer | Sequence[int],
    *,
    kept: Buffer | Sequence[int] | None = None,
    mask: Buffer | Sequence[int] | None = None,
    flags: Buffer | Sequence[int] | None = None,
) -> tuple[memoryview, memoryview]:
    """Values (f64) of rows or nodes on their tokens (f64), and the mask (u8) of tokens with something to train on.

    Tokens that are masked, not kept or NaN get 0 and 0, so that no NaN reaches a loss. ``offsets`` has one element more
    than ``values``. ``flags`` may stand in the place of ``mask``: sampled tokens that are not synthetic are trained.

    Raises:
        ArgumentError: For columns that do not fit each other, offsets that do not start at 0 or descend, or both a mask
            and flags.
    """

def check_column(column: Buffer | Sequence[float], kind: str, /) -> None:
    """Refuse a column that is not of a type (``u8``, ``u32``, ``i32``, ``u64``, ``f32``, ``f64``).

    Raises:
        ArgumentError: Says what the column holds and what it must be.
    """

def to_i64(column: memoryview, /) -> memoryview:
    """An integer column as i64, which is what torch indexes with, in the same shape; any other column as it is."""

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
    kept: Buffer | Sequence[int] | None = None,
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

    * ``values``: advantages (f64 or f32). They must be finite where something is trained.
    * ``per``: what has one value each: a rollout, a node, or a token.
    * ``kept``: of each value 0 where nothing is trained with it, as estimators return it (u8); the value may be NaN.
    * ``rollouts``: the rollouts to export (u32), in the order of their rows, each at most once; all if left out.
    * ``masked``: per rollout 1 where nothing of it is trained.
    * ``keep_masked``: whether masked rollouts have a row, with a loss mask of 0, or are left out.
    * ``splits``: per rollout the last node of its prompt (u32), on its path. If left out, or 2^32 - 1, a prompt ends
      before the first sampled token.
    * ``unknown``: sampled tokens without a finite log-probability that would be trained are an error, or leave
      the loss.
    * ``merge``: whether rollouts that end at one leaf are one row, with their number as its weight and the mean of
      their values, which stands for them where the loss is linear in the advantage. Only rollouts with equal masks
      and prompts are merged.
    * ``max_prompt``, ``max_response``: most tokens of a prompt and of a response.
    * ``long_prompt``: longer prompts are an error, cut on the left, or drop the row.
    * ``long_response``: longer responses are an error, cut on the right, or drop the row.

    ``report`` counts the changes: masked rollouts ``left_out``, rollouts ``merged`` into another's row, rollouts
    ``dropped``, rows with ``cut_prompts`` and ``cut_responses``, ``cut_tokens`` over all rows, sampled tokens taken out
    of the loss as ``unknown`` (each once, however many rows show it), and tokens ``repeated`` in rows of trees.

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
    kept: Buffer | Sequence[int] | None = None,
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

    Arguments, rules and errors are those of ``pack_ragged``; ``pad`` is the token id beside the rows. The widths
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
    kept: Buffer | Sequence[int] | None = None,
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

    Arguments, rules and errors are those of ``pack_ragged``, except for limits and merging.

    * ``weights`` says what ``TreePacked.weights`` are: the share of the tree's exported rollouts that stand at the
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
    position_ids: Final[memoryview]
    loss_mask: Final[memoryview]
    """u8: 1 on what is trained."""
    logprobs: Final[memoryview]
    """f32: log-probabilities, finite; 0 where not sampled or not known."""
    versions: Final[memoryview]
    """i32: weight versions; -1 where not sampled or not known."""
    flags: Final[memoryview]
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
    """What packing left out or changed; see ``pack_ragged``."""
    def unpack(self, row: int, /) -> TokenBuffer:
        """The tokens of a row as the forest has them, without what was cut off."""

@final
class Padded:
    """B rows of P + R tokens: prompts that end at place P, responses that start there. Each read makes a copy.

    Arrays of two dimensions are views of that shape; one with a side of 0 is one-dimensional and empty. Columns of rows
    are those of ``Ragged``.
    """

    input_ids: Final[memoryview]
    """u32 [B, P + R]: token ids, and the pad id beside them."""
    prompts: Final[memoryview]
    responses: Final[memoryview]
    """u32 [B, R]: the right part of ``input_ids``."""
    attention_mask: Final[memoryview]
    """u8 [B, P + R]: 1 on tokens, 0 on padding."""
    position_ids: Final[memoryview]
    """u32 [B, P + R]: tokens before this one; 0 on the left padding, on the right as at the last token."""
    flags: Final[memoryview]
    response_mask: Final[memoryview]
    """u8 [B, R]: 1 on what is trained."""
    logprobs: Final[memoryview]
    """f32 [B, R]: log-probabilities, finite; 0 where not sampled, not known, or padding."""
    versions: Final[memoryview]
    """i32 [B, R]: weight versions; -1 where not sampled, not known, or padding."""
    advantages: Final[memoryview]
    """f32 [B, R]: values; 0 where the response mask is 0."""
    rollouts: Final[memoryview]
    weights: Final[memoryview]
    prompt_lengths: Final[memoryview]
    lengths: Final[memoryview]
    cut_prompts: Final[memoryview]
    cut_responses: Final[memoryview]
    rows: Final[memoryview]
    report: Final[dict[str, int]]
    def unpack(self, row: int, /) -> TokenBuffer: ...

@final
class TreePacked:
    """Rows of trees: row i has the tokens ``offsets[i]:offsets[i + 1]``. Each read of a column makes a copy.

    Places (``parents``, ``subtree_ends``, starts and ends of segments) are tokens counted from the row's first, and
    segments are counted from the row's first segment. Token j attends to token i of its row if and only if
    ``i <= j < subtree_ends[i]``, which keeps the trees of a row apart. A segment is what one node has in a row. Columns
    without a description are those of ``Ragged``.
    """

    offsets: Final[memoryview]
    ids: Final[memoryview]
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
    gains: Final[memoryview]
    """f32: the part of that from values above 0: the mean of ``max(value, 0)``."""
    logprobs: Final[memoryview]
    versions: Final[memoryview]
    flags: Final[memoryview]
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
    segment_ends: Final[memoryview]
    segment_subtree_ends: Final[memoryview]
    """u32: end of what is below it."""
    segment_parents: Final[memoryview]
    """i32: the segment before it on the path; -1 for none."""
    segment_rollouts: Final[memoryview]
    """u32: exported rollouts that pass through it or end in it."""
    segment_repeated: Final[memoryview]
    """u8: 1 where the segment repeats one of another part of its tree."""
    report: Final[dict[str, int]]
    def unpack(self, rollout: int, /) -> TokenBuffer:
        """The tokens of a rollout of the forest, as the forest has them."""
