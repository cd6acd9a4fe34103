"""Controller <-> worker messages.

Requests in flight and rates are those of one LLM each, whose name a message has last.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from trunkline._internal.old_names import old_method
from trunkline.rollout.sampling.inflight import SpanRecord
from trunkline.store.schema import CallRow, RolloutRow, ToolRow, TreeRow
from trunkline.types import Task

__all__ = [
    "MAX_FRAME",
    "PROTOCOL",
    "Ack",
    "Amount",
    "AssignTasks",
    "Batch",
    "Begin",
    "Bye",
    "CutTasks",
    "Delta",
    "Done",
    "EarlierDeltas",
    "EndpointState",
    "Fatal",
    "FromWorker",
    "Hello",
    "HoldTurns",
    "LeaseDenied",
    "LeaseDrawn",
    "LeaseGrant",
    "LeaseRequest",
    "LeaseReturn",
    "LeaseRevoke",
    "Log",
    "OldestRollout",
    "Ping",
    "Pong",
    "ProtocolMessage",
    "RateGrant",
    "RateRequest",
    "RateReturn",
    "SetWeights",
    "SlotGrant",
    "SlotRequest",
    "SlotReturn",
    "SlotRevoke",
    "StopRun",
    "ToWorker",
    "TurnsHeld",
    "WeightsSet",
    "WorkerReady",
    "WorkerState",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
    "for_llm",
    "read_task",
    "write_task",
]


class ProtocolMessage(msgspec.Struct, array_like=True, tag=True):
    """Base: encoded as an array whose first element names the type."""


class LeaseRequest(ProtocolMessage):
    """Worker to controller: a lease of so much at least; it is answered by ``LeaseGrant`` or ``LeaseDenied``."""

    least: dict[str, int]


class LeaseGrant(ProtocolMessage):
    """Controller to worker: a lease on the run's budget.

    Attributes:
        lease: Its number.
        limits: What may be spent of it.
    """

    lease: int
    limits: dict[str, int]


class LeaseDenied(ProtocolMessage):
    """Controller to worker: the budget has too little left for what a lease was wanted for; the ledger's words."""

    reason: str


class LeaseRevoke(ProtocolMessage):
    """Controller to worker: give the lease at hand back as soon as nothing is in flight on it."""


class LeaseDrawn(ProtocolMessage):
    """Worker to controller: so much of a lease may be spent or reserved from here on."""

    lease: int
    most: dict[str, int]


class LeaseReturn(ProtocolMessage):
    """Worker to controller: nothing more is spent of a lease; the calls it paid for are in earlier batches.

    Attributes:
        lease: Its number.
        spent: What was spent.
        estimated: The part of it that nobody measured.
    """

    lease: int
    spent: dict[str, int]
    estimated: dict[str, int]


class SlotRequest(ProtocolMessage):
    """Worker to controller: how many slots it could use, those that it holds among them."""

    slots: list[int]
    llm: str = ""


class SlotGrant(ProtocolMessage):
    """Controller to worker: so many slots more, of the run and then of each endpoint that has a limit of its own.

    A slot is a request that may be in flight.
    """

    slots: list[int]
    llm: str = ""


class SlotRevoke(ProtocolMessage):
    """Controller to worker: return so many slots as soon as they are free; others have less than their share."""

    slots: list[int]
    llm: str = ""


class SlotReturn(ProtocolMessage):
    """Worker to controller: slots that it holds no longer, because they were reclaimed or nobody needs them.

    Attributes:
        slots: How many.
        wishes: How many it could use now, as ``SlotRequest`` says: a wish of long ago would bring them back.
    """

    slots: list[int]
    wishes: list[int]
    llm: str = ""


Amount = tuple[int, int]
"""So many requests, and so many tokens."""


class RateRequest(ProtocolMessage):
    """Worker to controller: requests and tokens are wanted out of the run's rates; it is answered by ``RateGrant``.

    Attributes:
        least: What the first request that waits lacks.
        most: What all that wait will come to.
    """

    least: Amount
    most: Amount
    llm: str = ""


class RateGrant(ProtocolMessage):
    """Controller to worker: so many requests and tokens may be sent."""

    requests: int
    tokens: int
    llm: str = ""


class RateReturn(ProtocolMessage):
    """Worker to controller: what was allotted and not used; below 0 for what replies took beyond it."""

    requests: int
    tokens: int
    llm: str = ""


PROTOCOL = 9
"""Version of these messages; a worker of another build is refused at the hello."""

MAX_FRAME = 64 * 1024 * 1024
"""Largest frame in bytes; a longer message is cut into several, and a longer frame is a broken peer."""


class WorkerState(msgspec.Struct, array_like=True):
    """How an engine is.

    Attributes:
        lag: Seconds that its event loop was late at most, since the last answer.
        memory: Bytes that its process holds.
        rollouts: Rollouts that grow.
        requests: Requests that are out.
        request: Seconds that the oldest of them is.
        tools: Tool calls that run.
        tool: Name of the tool that runs longest; empty for none.
        tool_seconds: How long that is.
        oldest: The slowest rollouts.
        endpoints: The endpoints.
        retry: Seconds until the next request is sent again; None where none waits for that.
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

    slow = old_method("slow", "oldest")
    doors = old_method("doors", "endpoints")


class EndpointState(msgspec.Struct, array_like=True, frozen=True):
    """An endpoint, as one engine sees it.

    Attributes:
        endpoint: Its base URL, without secrets.
        out: Requests that are out there.
        waiting: Requests that wait for a slot or a limit.
        shut: Why it gets no requests for now; empty while it does.
        pause: Seconds until it may be asked again, such as what its Retry-After named; 0 while it gets requests.
    """

    endpoint: str
    out: int
    waiting: int
    shut: str = ""
    pause: float = 0.0


class OldestRollout(msgspec.Struct, array_like=True, frozen=True):
    """A rollout that has been growing for long: the oldest of its task.

    Attributes:
        task: Id of its task, printable.
        rollout: Its number in the tree.
        seconds: For how long it has been growing here.
        place: What it waits for: ``model``, ``tool``, ``budget``, ``strategy``, ``run file`` or ``program``.
    """

    task: str
    rollout: int
    seconds: float
    place: str


class Hello(ProtocolMessage):
    """Controller to worker, first: who speaks.

    Attributes:
        protocol: ``PROTOCOL`` of the sender.
        build: Trunkline's version.
    """

    protocol: int
    build: str


class Begin(ProtocolMessage):
    """Controller to worker: a run begins; it is answered by ``WorkerReady``. The one before has ended with ``Bye``.

    Attributes:
        job: The job, as :func:`trunkline.protocol.job.pack_job` made it.
        level: The least level of log records that are wanted.
    """

    job: bytes
    level: int = 30


class AssignTasks(ProtocolMessage):
    """Controller to worker: tasks to take on, each its index in the run and what :func:`write_task` made of it."""

    tasks: list[tuple[int, bytes]]


class EarlierDeltas(ProtocolMessage):
    """Controller to worker, before a task that was begun: deltas of its tree. Many come in several of these.

    Attributes:
        task: The task's index in the run.
        deltas: Its next deltas, in order.
        taken: How many of the task's deltas, the first ones, are those of an earlier run that this one goes on from.
    """

    task: int
    deltas: list[bytes]
    taken: int = 0


class Ack(ProtocolMessage):
    """Controller to worker: the batch is in the run file; its turns are no longer in flight."""

    batch: int


class StopRun(ProtocolMessage):
    """Controller to worker: drop what is growing, send what is there, say bye.

    Attributes:
        grace: Seconds that requests and tool calls which are out have to come back before; nothing new is begun.
    """

    grace: float = 0.0


class Ping(ProtocolMessage):
    """Controller to worker: how are you? It is answered by ``Pong``."""


class CutTasks(ProtocolMessage):
    """Controller to worker: end the growth of every task, and report it.

    Attributes:
        word: How its trees end, see :class:`trunkline.store.schema.TreeEnding`.
        why: In words.
    """

    word: str
    why: str


class HoldTurns(ProtocolMessage):
    """Controller to worker: ask for no turn until ``SetWeights``; answered by ``TurnsHeld`` once none is in flight.

    Attributes:
        abort: Give up what is in flight, and ask for it again then.
    """

    abort: bool


class SetWeights(ProtocolMessage):
    """Controller to worker: turns are asked under this version of the weights from now on; see ``WeightsSet``."""

    version: str | None


class TurnsHeld(ProtocolMessage):
    """Worker to controller: no turn is in flight, and none will be until ``SetWeights``."""


class WeightsSet(ProtocolMessage):
    """Worker to controller: the version is in force."""

    version: str | None


class Pong(ProtocolMessage):
    """Worker to controller: the event loop runs, and this is how it is."""

    state: WorkerState


class Log(ProtocolMessage):
    """Worker to controller: something was logged there.

    Attributes:
        time: When, in seconds since 1970.
        level: How bad it is, as :mod:`logging` counts.
        logger: Whose it is.
        message: What was said, on one printable line.
        fields: What it is about: task, rollout and others.
        trace: The end of its traceback, printable as well; None without one.
        dropped: Records before it that were not sent, as there were too many.
    """

    time: float
    level: int
    logger: str
    message: str
    fields: dict[str, str | int]
    trace: str | None = None
    dropped: int = 0


class WorkerReady(ProtocolMessage):
    """Worker to controller: the job is understood.

    Attributes:
        protocol: ``PROTOCOL`` of the sender.
        build: Trunkline's version.
        pid: The worker's process id.
        slots: Credits: how many tasks it takes at a time.
    """

    protocol: int
    build: str
    pid: int
    slots: int


class Delta(msgspec.Struct, array_like=True):
    """One delta of one tree.

    Attributes:
        task: The task's index in the run.
        seq: The delta's sequence number in its tree.
        data: The delta.
        turns: Model turns in it.
        rollouts: Rollouts that ended in it.
        calls: Requests that were answered since the last one, those that its turns came of among them.
        tools: Tool calls that came back since then.
        spans: What the rollouts did, where a run is traced.
    """

    task: int
    seq: int
    data: bytes
    turns: int
    rollouts: int
    calls: list[CallRow]
    tools: list[ToolRow] = msgspec.field(default_factory=list)
    spans: list[SpanRecord] = msgspec.field(default_factory=list)


class Done(msgspec.Struct, array_like=True):
    """A task whose tree is complete, with its rows for the run file. It returns one credit."""

    task: int
    tree: TreeRow
    rollouts: list[RolloutRow]


class Batch(ProtocolMessage):
    """Worker to controller: what grew since the last batch.

    Attributes:
        batch: Number of the batch; acknowledged by it.
        deltas: New deltas.
        done: Tasks that are complete; their last delta is in this batch or an earlier one.
        served: Who answered, as the endpoint names itself.
        estimated: Generated tokens that are estimated, by the endpoint whose usage lacks them.
    """

    batch: int
    deltas: list[Delta]
    done: list[Done]
    served: list[str]
    estimated: dict[str, int] = {}

    @property
    def progressed(self) -> bool:
        """Whether anything grew: a turn, the end of a rollout, the end of a task."""
        return bool(self.done) or any(delta.turns or delta.rollouts for delta in self.deltas)


class Fatal(ProtocolMessage):
    """Worker to controller: the run cannot go on.

    Attributes:
        kind: Class name in :mod:`trunkline.errors`.
        message: One line for the user.
    """

    kind: str
    message: str


class Bye(ProtocolMessage):
    """Worker to controller, last: everything was sent."""


ToWorker = (
    Hello
    | Begin
    | EarlierDeltas
    | AssignTasks
    | Ack
    | StopRun
    | LeaseGrant
    | LeaseDenied
    | LeaseRevoke
    | SlotGrant
    | SlotRevoke
    | RateGrant
    | CutTasks
    | Ping
    | HoldTurns
    | SetWeights
)
FromWorker = (
    WorkerReady
    | Batch
    | LeaseRequest
    | LeaseDrawn
    | LeaseReturn
    | SlotRequest
    | SlotReturn
    | RateRequest
    | RateReturn
    | TurnsHeld
    | WeightsSet
    | Fatal
    | Bye
    | Pong
    | Log
)

_task: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)
_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def write_task(task: Task) -> bytes:
    """Encode a task by itself, so that its size is known before it travels."""
    return _encoder.encode(task)


def read_task(data: bytes) -> Task:
    """Decode what :func:`write_task` made; raises msgspec.MsgspecError."""
    return _task.decode(data)


def encode(message: ToWorker | FromWorker) -> bytes:
    """Encode one message."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes | memoryview) -> ToWorker:
    """Decode a message meant for a worker; raises msgspec.MsgspecError."""
    return _to_worker.decode(data)


def decode_from_worker(data: bytes | memoryview) -> FromWorker:
    """Decode a message from a worker; raises msgspec.MsgspecError."""
    return _from_worker.decode(data)


M = TypeVar("M")


def for_llm(llm: str, message: M) -> M:
    """Return a message about slots or rates with the name of the LLM that it is about.

    Args:
        llm: The name.
        message: One of :mod:`trunkline.protocol.messages` that has such a field.
    """
    return msgspec.structs.replace(message, llm=llm) if llm else message  # type: ignore[type-var]
