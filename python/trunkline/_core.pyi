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
    "CURRENCIES",
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
    "Ledger",
    "Node",
    "Plan",
    "Refusal",
    "Refused",
    "Rollout",
    "Scheduler",
    "Start",
    "Tally",
    "Tokens",
    "Tree",
    "Waiting",
    "__version__",
]

__version__: Final[str]
DEBUG: Final[bool]

FORMAT: Final[int]
"""Version of the format of deltas: :meth:`Tree.apply` takes no other."""

CURRENCIES: Final[tuple[str, ...]]
"""What budgets count: ``rollouts``, ``calls``, ``prompt`` and ``generated`` tokens, ``tools`` (tool calls), ``micros``
(microseconds), ``micro_dollars`` (millionths of a dollar)."""

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

    def finish_all(self, done: Buffer | Sequence[int], /) -> int:
        """Take several lanes out, or none if that raises, and return how many that were.

        Args:
            done: A mask, that is a buffer of n bools or bytes (format ``?`` or ``B``), in which lanes may be marked
                that are out already. Or lanes, as a buffer of u32 or a sequence; raises if one of them is out already.
        """

    def active(self, lane: int, /) -> bool: ...
    def ones(self) -> memoryview:
        """Active lanes (u32), ascending."""

    def plan(self) -> Plan:
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
class Plan:
    """Some of the lanes of a batch, in order, whose rows are worked on.

    Rows are a C-contiguous buffer of one dimension (a cell a lane) or two (lanes x cells), of any format that
    ``memoryview.cast`` knows: native integers, f32, f64, bools and bytes. What comes back is a read-only
    ``memoryview`` of the same format and number of dimensions, but for rows without a cell, which have one. No row
    of a lane outside the plan is ever in what comes back, and ``scatter(gather(x), fill)`` equals ``x`` in the lanes
    of the plan.
    """

    @property
    def lanes(self) -> memoryview:
        """The lanes (u32), ascending."""

    @property
    def size(self) -> int:
        """How many lanes the batch has, in the plan or not."""

    @property
    def valid(self) -> memoryview:
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
            fill: What the cells of all other lanes hold: a number that fits the format.
        """

    def __len__(self) -> int:
        """How many lanes are in the plan."""

@final
class Waiting:
    """Lanes that run until each waits at one of several queues: a role, an agent, a model.

    Args:
        n: How many lanes there are. All of them run.
        limits: For each queue the most lanes of one batch, 0 for any number.
    """

    def __new__(cls, n: int, limits: Buffer | Sequence[int], /) -> Waiting: ...
    def wait(self, lane: int, queue: int, /) -> None:
        """Let a running lane wait; raises if it has finished or waits already."""

    def finish(self, lane: int, /) -> None:
        """Take a lane out, whether it runs or waits. The others may be due after it."""

    def flush(self) -> list[tuple[int, Plan]]:
        """The batches that are due, each with its queue, in order of queues and lanes; their lanes run again.

        Everything is due when no lane runs any more. Before that, a queue gives its first lanes as often as they fill a
        batch. Empty while nothing is due.
        """

    @property
    def counts(self) -> tuple[int, int]:
        """How many lanes run, and how many wait."""

@final
class Refusal:
    """Why a budget does not allow something. It is an outcome to record, and its ``str`` says what is short."""

    @property
    def currency(self) -> str:
        """The scarcest of ``CURRENCIES``."""

    @property
    def wanted(self) -> int | None:
        """How much was asked for; None if no upper bound is known."""

    @property
    def left(self) -> int: ...
    @property
    def limit(self) -> int:
        """The limit; 2**64 - 1 where there is none and the counter is full."""

    @property
    def text(self) -> str: ...

@final
class Ledger:
    """A budget and everything that draws on it, in seven ``CURRENCIES``.

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
    The same calls give the same order.

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

    def next(self, max: int, ledger: Ledger, /) -> tuple[list[Start], list[Refused]]:
        """What may start now, in this order, and what the ledger refuses.

        Work that does not fit as a whole starts in part, and the rest stays ready. A refusal is given once, until
        something of the same task has started.

        Args:
            max: The most draws and rows in all; at most 65,536 come at a time.
            ledger: What reservations are made in.
        """

    def done(self, rollout: int, /) -> None:
        """A rollout has ended, by its number in :attr:`Start.rollout` and after; raises the second time."""

    def cancel(self, task: int, /) -> int:
        """Drop what a task has ready, take no more of it, and return how many draws and rows that were."""

    def counts(self, task: int, /) -> tuple[int, int]:
        """How many draws and rows a task has ready, and how many of its rollouts run."""

    @property
    def running(self) -> int:
        """How many rollouts run."""

@final
class Start:
    """Draws of a fork point, or rows of a waiting batch, that may start now, in one request."""

    @property
    def task(self) -> int: ...
    @property
    def rows(self) -> bool:
        """Whether these are rows and not draws."""

    @property
    def point(self) -> int:
        """The fork point, or the number of the batch."""

    @property
    def first(self) -> int:
        """The first draw or row."""

    @property
    def n(self) -> int: ...
    @property
    def rollout(self) -> int | None:
        """The run-wide number of the first rollout that it starts; the others follow. None for rows."""

    @property
    def reservation(self) -> int:
        """What the ledger holds for all of it."""

@final
class Refused:
    """Work that the ledger does not allow. It stays ready."""

    @property
    def task(self) -> int: ...
    @property
    def rows(self) -> bool:
        """Whether these are rows and not draws."""

    @property
    def point(self) -> int:
        """The fork point, or the number of the batch."""

    @property
    def first(self) -> int:
        """The first draw or row."""

    @property
    def n(self) -> int: ...
    @property
    def refusal(self) -> Refusal: ...

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
