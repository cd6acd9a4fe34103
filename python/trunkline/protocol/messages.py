"""Messages between the controller and its workers."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.old_names import old_method
from trunkline.errors import TreeError
from trunkline.rollout.budget import Amounts
from trunkline.rollout.sampling.inflight import SpanRecord
from trunkline.store.derive import calls_of
from trunkline.store.schema import CallRow, RolloutRow, ToolRow, TreeRow
from trunkline.tools.environment_pool import PoolCounts
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable


class ProtocolMessage(msgspec.Struct, array_like=True, tag=True):
    """Base: encoded as an array whose first element names the type."""


class ToWorker(ProtocolMessage):
    """A message of the controller to a worker."""


class FromWorker(ProtocolMessage):
    """A message of a worker to the controller."""


RUN_BUDGET = "budget"
"""The resource that is the run's budget; its amounts are those of the currencies."""


def slots_of(llm: str) -> str:
    """Return the resource that is the slots of an LLM; see ``trunkline.protocol.job.slot_kinds``."""
    return f"slots of {llm}"


def rates_of(llm: str) -> str:
    """Return the resource that is the ``requests`` and ``tokens`` a minute of an LLM."""
    return f"rates of {llm}"


class LeaseRequest(FromWorker):
    """``least`` is the least of a resource that helps, ``want`` the most: of slots, in all."""

    resource: str
    least: Amounts
    want: Amounts = {}


class LeaseGrant(ToWorker):
    """So much more may be used, as the lease of this number, or why it is denied."""

    resource: str
    amounts: Amounts
    lease: int = 0
    denied: str = ""


class LeaseRevoke(ToWorker):
    """Return so much as soon as it is free, or the present lease on a budget."""

    resource: str
    amounts: Amounts = {}


class LeaseDrawn(FromWorker):
    """So much of a lease may be spent or reserved from here on."""

    resource: str
    lease: int
    most: Amounts


class LeaseReturn(FromWorker):
    """A lease on a budget is over, or slots or rates are returned.

    ``unused`` may be below 0: what was used beyond the grants. The calls that ``used`` has paid for are in earlier
    batches; ``estimated`` is the part of it that was not measured. ``want`` replaces that of the last request, which
    would bring returned slots back.
    """

    resource: str
    unused: Amounts = {}
    used: Amounts = {}
    estimated: Amounts = {}
    want: Amounts = {}
    lease: int = 0


PROTOCOL = 12
"""Version of these messages; a worker of another build is refused at the hello."""

MAX_FRAME = 64 * 1024 * 1024
"""Largest frame in bytes; a longer message is sent in several, and a longer frame is an error."""


class WorkerState(msgspec.Struct, array_like=True):
    """The state of a worker, and of its oldest request and longest tool call.

    Attributes:
        lag: Most seconds that its event loop was late since its last ``Pong``.
        memory: Bytes that its process holds.
        rollouts: Rollouts that grow.
        requests: Requests in flight.
        request: Seconds since the oldest of them was sent.
        tools: Tool calls that run.
        tool: Name of the tool that has run longest; empty for none.
        tool_seconds: Seconds since it began.
        oldest: The oldest rollouts.
        endpoints: The endpoints.
        retry: Seconds until the next retry; None where no request waits for one.
        environments: Counts of its pool of environments; None where it has none, or has not used it.
    """

    lag: float
    memory: int
    rollouts: int
    requests: int
    request: float
    tools: int
    tool: str
    tool_seconds: float
    oldest: list[OldestRollout] = msgspec.field(default_factory=list)
    endpoints: list[EndpointState] = msgspec.field(default_factory=list)
    retry: float | None = None
    environments: PoolCounts | None = None

    slow = old_method("slow", "oldest")
    doors = old_method("doors", "endpoints")


class EndpointState(msgspec.Struct, array_like=True, frozen=True):
    """An endpoint, as one worker sees it.

    Attributes:
        endpoint: Its base URL, without secrets.
        out: Requests in flight.
        waiting: Requests that wait for a slot or a limit.
        shut: Why it gets no requests; empty while it does.
        pause: Seconds until it may be asked again, such as its Retry-After; 0 while it gets requests.
    """

    endpoint: str
    out: int
    waiting: int
    shut: str = ""
    pause: float = 0.0


class OldestRollout(msgspec.Struct, array_like=True, frozen=True):
    """The rollout of a task that has been growing longest.

    Attributes:
        task: Id of its task, printable.
        rollout: Its number in the tree.
        seconds: Seconds since it began in this worker.
        place: What it waits for: ``model``, ``tool``, ``budget``, ``strategy``, ``run file`` or ``program``.
    """

    task: str
    rollout: int
    seconds: float
    place: str


class Hello(ToWorker):
    """First: the protocol and the version of trunkline."""

    protocol: int
    build: str


class Begin(ToWorker):
    """A run begins, with the job that ``.job.pack_job`` encoded, and ``sys.argv``; see ``WorkerReady``."""

    job: bytes
    level: int = 30
    argv: list[bytes] = []


class AssignTasks(ToWorker):
    """Tasks, each its index in the run and what ``write_task`` encoded."""

    tasks: list[tuple[int, bytes]]


class EarlierDeltas(ToWorker):
    """The next deltas of a begun task; the first ``taken`` of all are of an earlier run."""

    task: int
    deltas: list[bytes]
    taken: int = 0


class Ack(ToWorker):
    """The batch is in the run file, so its turns are no longer in flight."""

    batch: int


class StopRun(ToWorker):
    """Begin nothing, wait ``grace`` seconds for requests in flight, and send ``Bye``."""

    grace: float = 0.0


class Ping(ToWorker):
    """Answered by ``Pong``."""


class CutTasks(ToWorker):
    """End all growth with a word of ``trunkline.store.schema.TreeEnding``."""

    word: str
    why: str


class HoldTurns(ToWorker):
    """Request no turn until ``SetWeights``; ``abort`` cancels those in flight, to be retried."""

    abort: bool


class SetWeights(ToWorker):
    """Request turns under this version of the weights; answered by ``WeightsSet``."""

    version: str | None


class TurnsHeld(FromWorker):
    """No turn is in flight, and none will be until ``SetWeights``."""


class WeightsSet(FromWorker):
    """The version is in force."""

    version: str | None


class Pong(FromWorker):
    """The state of the worker."""

    state: WorkerState


class Log(FromWorker):
    """A log record, with ``dropped`` records before it; its texts are printable lines."""

    time: float
    level: int
    logger: str
    message: str
    fields: dict[str, str | int]
    trace: str | None = None
    dropped: int = 0


class WorkerReady(FromWorker):
    """The job is decoded; it takes ``slots`` tasks at a time."""

    protocol: int
    build: str
    pid: int
    slots: int


class Delta(msgspec.Struct, array_like=True):
    """A delta of a tree, with the calls since the last one; its turns and ended rollouts; traced spans."""

    task: int
    seq: int
    data: bytes
    turns: int
    rollouts: int
    spans: list[SpanRecord] = []

    @property
    def calls(self) -> list[CallRow]:
        """Its model calls; none where it cannot be read."""
        return self._calls[0]

    @property
    def tools(self) -> list[ToolRow]:
        """Its tool calls, likewise."""
        return self._calls[1]

    @property
    def _calls(self) -> tuple[list[CallRow], list[ToolRow]]:
        try:
            return calls_of(self.data) or ([], [])
        except TreeError:
            return [], []


class Done(msgspec.Struct, array_like=True):
    """A task whose tree is complete, with its rows for the run file. It returns one credit."""

    task: int
    tree: TreeRow
    rollouts: list[RolloutRow]


class Batch(FromWorker):
    """What grew since the last batch.

    ``done`` has tasks whose last delta is in this batch or an earlier one; ``served`` names servers as they do
    themselves; ``estimated`` counts generated tokens by endpoint where its usage lacks them, and ``retry_causes``
    attempts beyond the first.
    """

    batch: int
    deltas: list[Delta]
    done: list[Done]
    served: list[str]
    estimated: dict[str, int] = {}
    retry_causes: dict[str, int] = {}

    @property
    def progressed(self) -> bool:
        """Whether anything grew: a turn, the end of a rollout, the end of a task."""
        return bool(self.done) or any(delta.turns or delta.rollouts for delta in self.deltas)


class Fatal(FromWorker):
    """The run cannot continue; ``kind`` is a class of ``trunkline.errors``."""

    kind: str
    message: str


class Bye(FromWorker):
    """Last: everything was sent."""


def _union(base: type[ProtocolMessage]) -> Any:
    return reduce(or_, base.__subclasses__())


_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(_union(ToWorker))
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(_union(FromWorker))


write_task: Callable[[Task], bytes] = _encoder.encode
"""Encode a task by itself, so that its size is known before it is sent."""

read_task: Callable[[bytes], Task] = msgspec.msgpack.Decoder(Task).decode
"""Decode a task of ``write_task``; raises msgspec.MsgspecError."""


def encode(message: ToWorker | FromWorker) -> bytes:
    return _encoder.encode(message)


def decode_to_worker(data: bytes | memoryview) -> ToWorker:
    """Decode a message for a worker; raises msgspec.MsgspecError."""
    return _to_worker.decode(data)


def decode_from_worker(data: bytes | memoryview) -> FromWorker:
    """Decode a message from a worker; raises msgspec.MsgspecError."""
    return _from_worker.decode(data)
