"""Traces of verifiers: a tree as one message graph, and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from trunkline import _core
from trunkline._internal.registry import load_extra
from trunkline._internal.text import printable, quoted
from trunkline._internal.validation import check_text
from trunkline.errors import CoreError, UsageError
from trunkline.llm.request import model_in
from trunkline.train.message_graph import GraphNode, MessageGraph, graphs
from trunkline.train.selection import Rules, mean
from trunkline.tree.records import Failure, number_of, version_in
from trunkline.tree.views import Trajectory, Tree, message_text
from trunkline.types import FAILED, UNSCORED, Message, Task, Termination, accepted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from verifiers.v1 import Episode, Trace

    from trunkline.train.advantages import Estimator


def traces(
    run: Iterable[Tree],
    *,
    estimator: Estimator | None = None,
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
    **options: str | float | bool,
) -> Iterator[Trace]:
    """Write each tree as one trace of verifiers 0.4 (a ``WireTrace``), whose branches are the tree's samples.

    Nodes of the trace are the messages on the paths of rollouts, those of dropped rollouts left out. A turn whose
    prompt was not its path, because a program asked with messages of its own or because token ids drifted, stands at
    the end of a branch that repeats the messages of its prompt.

    With an ``estimator`` each turn that is trained has ``advantages`` (f64, one a sampled token: the mean over the
    rollouts that train it) and ``loss_weights["rl"]`` (one a token: their number on sampled tokens, else 0), so that
    advantage times weight sums to that of flat rows. A turn that is not trained has no mask. Without an estimator the
    mask is that of all sampled tokens. ``logprobs`` are in nats. A tree in which a turn or a message before one has no
    token ids gives a trace without ids, masks and advantages, which verifiers takes for evaluation.

    The trace's reward ``reward`` is the mean over scored rollouts, None if there is none. What a trace has no field for
    (rollouts, agents, fields of messages) stands in ``info["trunkline"]`` for ``tree_of``. Marks of programs,
    times and the figures of failed calls are left out. JSON of a trace has 4 decimals of a log-probability unless
    verifiers is asked for all: ``trace.to_record(float_decimals=None)``.

    Args:
        run: A run, or trees.
        estimator: A preset or a function, as of ``trunkline.train.batch``; None for traces that are not trained.
        censored: As of ``trunkline.train.turns``; with an estimator alone it must be said.
        on_failed: Likewise.
        options: Options of the preset.

    Returns:
        The traces, made as they are asked for; none for a group that is left out.

    Raises:
        ConfigError: A setting has a value it cannot have, or verifiers is not installed.
        ArgumentError: The estimator does not take these options or rewards.
        UsageError: A group has rollouts that were cut off, and ``censored`` is not said; a turn that is to be trained
            has sampled tokens without a log-probability; or verifiers has no form for a message.
    """
    api = load_extra("verifiers.v1", "verifiers", "trunkline.train.verifiers")
    found = graphs(run, estimator, Rules(censored, on_failed), options)
    return (_validated(api.WireTrace, _wire_trace(graph, trained=estimator is not None), graph.tree) for graph in found)


def episodes(
    run: Iterable[Tree],
    *,
    env: str = "trunkline",
    estimator: Estimator | None = None,
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
    **options: str | float | bool,
) -> Iterator[Episode]:
    """Write each tree as an episode of verifiers with one trace, in a group named like the task.

    Args:
        run: A run, or trees.
        env: The environment's id and name, as prime-rl counts episodes.
        estimator: As of ``traces``.
        censored: Likewise.
        on_failed: Likewise.
        options: Likewise.

    Returns:
        The episodes, made as they are asked for. Errors are those of ``traces``.
    """
    check_text("env", env)
    api = load_extra("verifiers.v1", "verifiers", "trunkline.train.verifiers")
    found = traces(run, estimator=estimator, censored=censored, on_failed=on_failed, **options)
    return (
        api.WireEpisode(
            env=api.EnvInfo(id=env, name=env),
            task=trace.task,
            group=api.GroupInfo(id=trace.task.data.id),
            ok=trace.ok,
            traces=[trace],
        )
        for trace in found
    )


def _validated(kind: Any, wire: dict[str, Any], tree: Tree) -> Any:
    """Have verifiers validate a trace."""
    try:
        return kind.model_validate(wire)
    except ValueError as problem:
        fault: Any = problem.errors()[0] if hasattr(problem, "errors") else {"loc": (), "msg": problem}
        said = printable(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", 300)
        raise UsageError(f"task {quoted(tree.task.id)} can be no trace: verifiers refuses {said}") from None


# From a tree to a trace


def _wire_trace(graph: MessageGraph, *, trained: bool) -> dict[str, Any]:
    """Return a trace as the mapping that verifiers validates."""
    tree = graph.tree
    rollouts = [Trajectory(tree, chosen.rollout) for chosen in graph.rollouts]
    views = [tree.node(node.node) for node in graph.nodes]
    turns = [place for place, view in enumerate(views) if view.kind == _core.TURN]
    names = {views[place].agent for place in turns}
    models = {model_in(views[place].namespace) for place in turns}
    ended = {rollout.termination for rollout in rollouts}
    scored = [rollout.reward for rollout in rollouts if rollout.termination not in UNSCORED]
    reward = mean([value for value in scored if not math.isnan(value)])
    exact = graph.incomplete is None
    return {
        "task": {"type": "Task", "data": _task_data(tree.task)},
        "agent": {
            "config": {"model": models.pop() if len(models) == 1 else None},
            "name": names.pop() or "agent" if len(names) == 1 else "agent",
        },
        "nodes": [_wire_node(graph, place, trained=trained, exact=exact) for place in range(len(graph.nodes))],
        "calls": [_call(tree, graph.nodes[place].node, place) for place in turns],
        "rewards": {"reward": None if math.isnan(reward) else {"score": reward}},
        "is_completed": None not in ended,
        "ok": not ended <= FAILED | {None},
        "stop_condition": next(iter(ended)) if len(ended) == 1 else None,
        "errors": [
            {"type": rollout.error.kind or "Error", "message": rollout.error.message}
            for rollout in rollouts
            if rollout.error is not None
        ],
        "info": {"trunkline": msgspec.to_builtins(_extra(graph))},
    }


def _task_data(task: Task) -> dict[str, Any]:
    prompt = [_wire_message(message, None) for message in task.messages]
    return {"id": task.id, "prompt": prompt, "reference": list(task.reference), "metadata": task.metadata}


def _wire_node(graph: MessageGraph, place: int, *, trained: bool, exact: bool) -> dict[str, Any]:
    node = graph.nodes[place]
    core = graph.tree.core
    turn = node.node != 0 and core.node(node.node).kind == _core.TURN
    aside = core.aside(node.node) if turn else None
    wire: dict[str, Any] = {
        "parent": None if node.parent < 0 else node.parent,
        "message": _wire_message(msgspec.json.decode(node.message), aside),
        "sampled": turn,
    }
    if not exact:
        return wire
    shown = node.sampled if node.credit or not trained else [False] * len(node.ids)
    wire |= {
        "token_ids": node.ids,
        "mask": shown,
        "logprobs": [value for value, one in zip(node.logprobs, shown, strict=True) if one],
    }
    if node.credit:
        advantage, weight = node.credit
        wire["advantages"] = [advantage] * len(wire["logprobs"])
        wire["loss_weights"] = {"rl": [float(weight) if one else 0.0 for one in shown]}
    return wire


def _wire_message(message: Message, aside: str | None) -> dict[str, Any]:
    """Return a chat message in verifiers' form, which validation checks; its other fields are left out."""
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        calls = message.get("tool_calls")
        return {
            "role": role,
            "content": message_text(message) if isinstance(content, list) else content,
            "reasoning_content": aside,
            "tool_calls": [_wire_call(call) for call in calls] if isinstance(calls, list) and calls else None,
        }
    wire = {"role": role, "content": "" if content is None else content}
    return wire | ({"tool_call_id": message.get("tool_call_id")} if role == "tool" else {})


def _wire_call(call: Any) -> dict[str, Any]:
    given = call if isinstance(call, dict) else {}
    function = given.get("function")
    called = function if isinstance(function, dict) else {}
    return {"id": given.get("id"), "name": called.get("name"), "arguments": called.get("arguments")}


def _call(tree: Tree, node: int, place: int) -> dict[str, Any]:
    facts = tree.core.node(node)
    known = facts.prompt is not None and facts.generated is not None
    return {
        "node": place,
        "model": model_in(facts.namespace) or None,
        "finish_reason": facts.finish if facts.finish in {"stop", "length", "tool_calls"} else None,
        "usage": {"prompt_tokens": facts.prompt, "completion_tokens": facts.generated} if known else None,
    }


# From a trace to a tree

_U32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _ImageUrl(msgspec.Struct, omit_defaults=True):
    url: str


class _Part(msgspec.Struct, omit_defaults=True):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: _ImageUrl | None = None


class _ToolCall(msgspec.Struct):
    id: str
    name: str
    arguments: str


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


class _Node(msgspec.Struct):
    message: _Message
    parent: int | None = None
    sampled: bool = False
    token_ids: list[_U32] = []
    mask: list[bool] = []
    logprobs: list[float] = []


class _Usage(msgspec.Struct):
    prompt_tokens: _U32
    completion_tokens: _U32
    cached_input_tokens: _U32 | None = None


class _Call(msgspec.Struct):
    node: int | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None


class _Reward(msgspec.Struct):
    score: float
    weight: float = 1.0


class _Error(msgspec.Struct):
    type: str
    message: str


class _TaskData(msgspec.Struct):
    id: str | None = None
    idx: int | None = None
    system_prompt: str | None = None
    prompt: str | list[_Message] | None = None
    reference: Any = None
    metadata: Any = None


class _TraceTask(msgspec.Struct):
    data: _TaskData


class _Agent(msgspec.Struct):
    name: str = "agent"


class _Trace(msgspec.Struct):
    """The fields of a trace that a tree has a place for."""

    id: str
    task: _TraceTask
    agent: _Agent
    nodes: list[_Node] = []
    calls: list[_Call] = []
    rewards: dict[str, _Reward | None] = {}
    info: dict[str, Any] = {}
    is_completed: bool = False
    ok: bool = False
    stop_condition: str | None = None
    errors: list[_Error] = []


class _NodeFacts(msgspec.Struct, array_like=True, frozen=True):
    """Of a node: kind, agent, namespace, finish reason, and its message if a trace changes it."""

    kind: int
    agent: str = ""
    namespace: str = ""
    finish: str = ""
    message: str | None = None


class _RolloutFacts(msgspec.Struct, frozen=True):
    """Of a rollout: places of its fork point and leaf in the trace, -1 for the root, and how it ended."""

    point: int
    leaf: int
    path: list[_U32]
    subgroup: _U32 = 0
    termination: str | None = None
    answer: str | None = None
    error: str | None = None
    reward: float | None = None
    note: str | None = None


class _Extra(msgspec.Struct, frozen=True):
    """``info["trunkline"]``: what a trace has no field for; a node of None is a message that a prompt repeats."""

    nodes: list[_NodeFacts | None]
    rollouts: list[_RolloutFacts]
    ended: str = ""


def _extra(graph: MessageGraph) -> _Extra:
    core, places = graph.tree.core, {node.node: place for place, node in enumerate(graph.nodes) if node.node}
    rollouts = []
    for chosen in graph.rollouts:
        facts = core.rollout(chosen.rollout)
        rollouts.append(
            _RolloutFacts(
                point=places.get(facts.point, -1),
                leaf=places.get(facts.leaf, -1),
                path=list(facts.path),
                subgroup=facts.subgroup,
                termination=facts.termination,
                answer=facts.answer,
                error=facts.error,
                reward=None if math.isnan(facts.reward) else facts.reward,
                note=facts.note,
            )
        )
    return _Extra([_node_facts(graph, node) for node in graph.nodes], rollouts, graph.tree.ended)


def _node_facts(graph: MessageGraph, node: GraphNode) -> _NodeFacts | None:
    if node.node == 0:
        return None
    facts = graph.tree.core.node(node.node)
    same = _chat(_wire_message(msgspec.json.decode(node.message), None)) == node.message
    kept = None if same else node.message.decode()
    return _NodeFacts(facts.kind, facts.agent, facts.namespace, facts.finish, kept)


def _chat(wire: dict[str, Any]) -> bytes:
    """Return a message of verifiers as a chat message, JSON."""
    chat: dict[str, Any] = {name: wire[name] for name in ("role", "tool_call_id", "content") if name in wire}
    if chat["role"] != "tool":
        chat.pop("tool_call_id", None)
    if wire.get("tool_calls"):
        chat["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in wire["tool_calls"]
        ]
    return msgspec.json.encode(chat)


def tree_of(trace: Trace | Mapping[str, Any]) -> Tree:
    """Read a trace of verifiers as a tree; verifiers need not be installed.

    A trace of ``traces`` gives its rollouts back: the tree's digest is the old one, unless rollouts were dropped,
    prompts drifted, or belong to no rollout. A trace that repeats messages for a turn is refused, and so is one with a
    rollout that forks from a dropped one. Any other trace must be one chain, and becomes one rollout: its reward is the
    weighted sum of the trace's rewards, and NaN where one of them is None or there is none. Metrics, links between
    agents, routed experts, sampling masks and times are left out.

    Args:
        trace: A ``Trace``, or its JSON, decoded.

    Raises:
        UsageError: The trace is damaged, or can be no tree; the message names the trace and the field.
    """
    try:
        read = msgspec.convert(trace, _Trace, from_attributes=True)
    except (msgspec.ValidationError, UnicodeError) as problem:
        raise UsageError(f"this can be no tree, as it is no trace of verifiers: {printable(str(problem))}") from None
    try:
        _check(read)
        extra = _read_extra(read) if "trunkline" in read.info else _chain(read)
        tree = Tree(_task(read), ended=extra.ended)
        _Growth(tree, read, extra).grow()
    except (CoreError, UsageError, UnicodeError, OverflowError) as problem:
        raise UsageError(f"trace {quoted(read.id)} can be no tree: {printable(str(problem))}") from None
    return tree


def _check(trace: _Trace) -> None:
    """Raise UsageError unless nodes fit each other and numbers are finite."""
    for place, node in enumerate(trace.nodes):
        fault = ""
        if node.parent is not None and not 0 <= node.parent < place:
            fault = f"parent {node.parent} is no node before it"
        elif len(node.mask) != len(node.token_ids):
            fault = f"the mask has {len(node.mask)} elements for {len(node.token_ids)} token ids"
        elif node.logprobs and len(node.logprobs) != sum(node.mask):
            fault = f"there are {len(node.logprobs)} log-probabilities for {sum(node.mask)} tokens in the mask"
        elif not all(map(math.isfinite, node.logprobs)):
            fault = "a log-probability is not finite"
        elif node.sampled and node.message.role != "assistant":
            fault = f"it is sampled, and its role is {node.message.role}, not assistant"
        elif any(node.mask) and not node.sampled:
            fault = "the mask has tokens of a message that no model sampled"
        if fault:
            raise UsageError(f"node {place}: {fault}")
    if not math.isfinite(sum(_values(trace))):
        raise UsageError("its rewards do not add up to a finite number; one that is not known is None")


def _values(trace: _Trace) -> list[float]:
    """Return the weighted rewards that are known."""
    return [reward.score * reward.weight for reward in trace.rewards.values() if reward is not None]


def _read_extra(trace: _Trace) -> _Extra:
    """Read ``info["trunkline"]``."""
    try:
        extra = msgspec.convert(trace.info["trunkline"], _Extra)
    except (msgspec.ValidationError, UnicodeError) as problem:
        raise UsageError(f'info["trunkline"]: {problem}') from None
    size = len(trace.nodes)
    if len(extra.nodes) != size:
        raise UsageError(f'info["trunkline"] has {len(extra.nodes)} nodes, and the trace {size}')
    for place, facts in enumerate(extra.nodes):
        if facts is None:
            raise UsageError(f"node {place} repeats a message for a turn whose prompt was not its path")
        if facts.kind not in _KINDS or (facts.kind == _core.TURN) != trace.nodes[place].sampled:
            raise UsageError(f'node {place}: info["trunkline"] says kind {facts.kind}, which does not fit the node')
    for number, rollout in enumerate(extra.rollouts):
        for name, place in (("point", rollout.point), ("leaf", rollout.leaf)):
            if not -1 <= place < size:
                raise UsageError(f'info["trunkline"]: rollout {number} has the {name} {place}, which is no node')
    depths = [0]
    for node in trace.nodes:
        depths.append(1 + (0 if node.parent is None else depths[node.parent + 1]))
    steps = sum(max(0, depths[rollout.leaf + 1] - depths[rollout.point + 1]) for rollout in extra.rollouts)
    if steps > _MOST + _REPEATS * size:
        raise UsageError(f"its rollouts are {steps} nodes long together, which is too much for {size} nodes")
    return extra


_MOST = 2**20
"""Nodes that the paths of rollouts may have together in any tree."""

_REPEATS = 256
"""How many more for each node of the trace."""

_KINDS = (_core.PROMPT, _core.TURN, _core.OBSERVATION, _core.MESSAGE)
_ENDINGS = {one.value: one for one in Termination} | {
    "max_input_tokens": Termination.MAX_CONTEXT,
    "max_output_tokens": Termination.MAX_TOKENS,
    "max_total_tokens": Termination.MAX_TOKENS,
    "provider_error": Termination.LLM_ERROR,
}


def _chain(trace: _Trace) -> _Extra:
    """Describe a trace without ``info["trunkline"]`` as one rollout."""
    if not trace.nodes:
        raise UsageError("it has no messages")
    if any(node.parent != (place - 1 if place else None) for place, node in enumerate(trace.nodes)):
        raise UsageError(
            'it has several branches, and no info["trunkline"] that says which rollout each is and how it was rewarded'
        )
    calls = {call.node: call for call in trace.calls}
    last = len(trace.nodes) - 1
    first = next((place for place, node in enumerate(trace.nodes) if node.sampled), last + 1)
    nodes: list[_NodeFacts | None] = []
    for place, node in enumerate(trace.nodes):
        kind = _core.OBSERVATION if node.message.role == "tool" else _core.MESSAGE
        call = calls.get(place, _Call()) if node.sampled else _Call()
        kind = _core.TURN if node.sampled else _core.PROMPT if place < first else kind
        nodes.append(_NodeFacts(kind, trace.agent.name, call.model or "", call.finish_reason or ""))
    ending = _ending(trace)
    rewards = _values(trace)
    scored = len(rewards) == len(trace.rewards) > 0 and ending not in UNSCORED | {None}
    answers = [_text(node.message) for node in trace.nodes if node.sampled]
    error = Failure(trace.errors[-1].type, trace.errors[-1].message).encode() if trace.errors else None
    rollout = _RolloutFacts(
        point=first - 1,
        leaf=last,
        path=[0, 0],
        termination=ending,
        answer=answers[-1] if answers and ending == Termination.ANSWER else None,
        error=error if ending is not None else None,
        reward=sum(rewards) if scored else None,
    )
    return _Extra(nodes, [rollout])


def _ending(trace: _Trace) -> Termination | None:
    """Return how a trace ended, None while it grows."""
    if not trace.is_completed:
        return None
    return _ENDINGS.get(trace.stop_condition or "", Termination.ANSWER if trace.ok else Termination.TOOL_ERROR)


def _text(message: _Message) -> str:
    return message_text(msgspec.to_builtins(message))


def _task(trace: _Trace) -> Task:
    data = trace.task.data
    if isinstance(data.prompt, list):
        messages = [msgspec.json.decode(_chat(msgspec.to_builtins(message))) for message in data.prompt]
    elif data.prompt is not None:
        messages = [{"role": "user", "content": data.prompt}]
    else:
        first = next((place for place, node in enumerate(trace.nodes) if node.sampled), len(trace.nodes))
        messages = [msgspec.json.decode(_chat(msgspec.to_builtins(node.message))) for node in trace.nodes[:first]]
    if data.system_prompt is not None and data.prompt is not None:
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    return Task(
        id=data.id or (trace.id if data.idx is None else str(data.idx)),
        messages=messages,
        reference=accepted("reference", data.reference),
        metadata=data.metadata if isinstance(data.metadata, dict) else {},
    )


class _Growth:
    """Grows the rollouts of a trace in a new tree."""

    def __init__(self, tree: Tree, trace: _Trace, extra: _Extra) -> None:
        self._core = tree.core
        self._trace = trace
        self._rollouts = extra.rollouts
        self._facts = [facts for facts in extra.nodes if facts is not None]
        self._calls = {call.node: call.usage for call in trace.calls if call.usage is not None}
        self._nodes = {-1: 0}
        self._filled = {0}

    def grow(self) -> None:
        core = self._core
        for number, facts in enumerate(self._rollouts):
            for place in self._path(facts.point, -1) or []:
                if place not in self._nodes and self._facts[place].kind in {_core.TURN, _core.OBSERVATION}:
                    raise UsageError(
                        f"rollout {number} forks behind node {place}, which is of no rollout before it: rollouts that "
                        "fork from one that was dropped can be no tree again"
                    )
                if place not in self._nodes:
                    self._append(place)
            rollout = core.open(self._nodes[facts.point], facts.path, facts.subgroup)
            path = self._path(facts.leaf, facts.point)
            if path is None:
                raise UsageError(f"rollout {number} has the leaf {facts.leaf}, which is not below {facts.point}")
            for place in path:
                self._step(rollout, place)
            if facts.termination is not None:
                core.close(rollout, facts.termination, facts.answer, facts.error)
            if facts.reward is not None:
                core.score(rollout, facts.reward)
            if facts.note is not None:
                core.note(rollout, facts.note)

    def _path(self, place: int, above: int) -> list[int] | None:
        """Return the places from below ``above`` to a place; None if it is not above."""
        path = []
        while place != above:
            if place < 0:
                return None
            path.append(place)
            parent = self._trace.nodes[place].parent
            place = -1 if parent is None else parent
        return path[::-1]

    def _said(self, place: int) -> tuple[bytes, int]:
        """Return a node's message and its agent's number."""
        facts, node = self._facts[place], self._trace.nodes[place]
        message = _chat(msgspec.to_builtins(node.message)) if facts.message is None else facts.message.encode()
        return message, self._core.name(facts.agent)

    def _append(self, place: int) -> None:
        """Append a node of the prompt, or one put in behind a state."""
        facts, parent = self._facts[place], self._trace.nodes[place].parent
        message, agent = self._said(place)
        above = self._nodes[-1 if parent is None else parent]
        self._nodes[place] = self._core.append(above, facts.kind, message, agent)
        self._give_ids(place)

    def _step(self, rollout: int, place: int) -> None:
        """Append a node at a rollout's leaf."""
        core, facts = self._core, self._facts[place]
        message, agent = self._said(place)
        if facts.kind == _core.TURN:
            usage, aside = self._calls.get(place), self._trace.nodes[place].message.reasoning_content
            figures = (-1, -1, -1)
            if usage is not None:
                cached = usage.cached_input_tokens
                figures = usage.prompt_tokens + (cached or 0), -1 if cached is None else cached, usage.completion_tokens
            named = core.name(facts.namespace), core.name(facts.finish)
            said = None if aside is None else aside.encode()
            node = core.turn(rollout, message, agent, *named, *figures, 0, 0, said, None, self._sampled(place))
        elif facts.kind == _core.OBSERVATION:
            node = core.observe(rollout, message, agent, 0)
        elif facts.kind == _core.MESSAGE:
            node = core.tell(rollout, message, agent)
        else:
            raise UsageError(f"node {place} is of the prompt, and a rollout grows past it")
        self._nodes[place] = node
        self._give_ids(place)

    def _sampled(self, place: int) -> _core.TokenBuffer | None:
        """Return the tokens of a turn; log-probabilities that a trace has not are NaN where it sampled."""
        node = self._trace.nodes[place]
        if not node.token_ids:
            return None
        version = number_of(version_in(self._facts[place].namespace))
        values = iter(node.logprobs or [math.nan] * len(node.mask))
        return _core.TokenBuffer(
            node.token_ids,
            [next(values) if shown else 0.0 for shown in node.mask],
            [version if shown else -1 for shown in node.mask],
            [_core.SAMPLED if shown else 0 for shown in node.mask],
        )

    def _give_ids(self, place: int) -> None:
        """Give a node its ids, and none to those before it that have no tokens of their own."""
        ids, node = self._trace.nodes[place].token_ids, self._nodes[place]
        while (ids or node != self._nodes[place]) and node not in self._filled:
            if self._core.node(node).kind != _core.TURN:
                self._core.tokenise(node, _core.TokenBuffer(ids))
            self._filled.add(node)
            ids, node = [], self._core.node(node).parent
