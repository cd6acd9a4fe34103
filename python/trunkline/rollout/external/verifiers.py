"""Environments of the package verifiers: their tasks, their episodes as an agent, and the rewards that they give."""

from __future__ import annotations

import copy
import itertools
import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from trunkline._internal.registry import load_extra
from trunkline._internal.text import describe_error, excerpt, redact, without_secrets
from trunkline._internal.validation import check_int, check_optional, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.rollout.external.config import External
from trunkline.scoring.rewards.base import Scored
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.scoring.rewards.base import Reward
    from trunkline.tree.views import Trajectory

__all__ = ["VerifiersEnvironment", "episode_reward", "from_verifiers"]

_PREFIX: Final = "episodes"

_DATA: Final = "verifiers"
"""Where the metadata of a task hold the data of the environment's own task."""

_NO_KEY: Final = "TRUNKLINE_GATEWAY_NEEDS_NO_KEY"
"""Where an episode's client looks for a key; the variable is not set, so none is sent."""

_FOLDERS: Final = r"runtimes/subprocess/[0-9a-f]{32}"
"""The working folder of an agent, which has another name at each start."""

_SUBPROCESS: Final = "subprocess"


class VerifiersEnvironment(NamedTuple):
    """What a run needs of an environment of verifiers; ``from_verifiers`` makes it.

    Attributes:
        tasks: Its tasks. Their messages are what a chat loop is told first, and their metadata hold the task's data.
        program: Its episodes, as an agent.
        reward: Reads the rewards that the environment gave, its parts and its metrics.
    """

    tasks: list[Task]
    program: External
    reward: Reward


def from_verifiers(
    env: Any,
    *,
    limit: int | None = None,
    effects: Literal["none", "folder", "external"] = "external",
    masks: Sequence[str] = (),
    on_divergence: Literal["fail", "branch", "count"] = "fail",
) -> VerifiersEnvironment:
    """Run an environment of verifiers: each rollout is one episode of it, whose agents ask the run's model.

    ``games = tl.from_verifiers({"taskset": {"id": "textarena", "game": "Wordle-v0"}}, limit=100)``, and then
    ``tl.run(tl.Agent(model=...), games.tasks, program=games.program, reward=games.reward, llm=...)``.

    Args:
        env: The id of a taskset; or a configuration: a dict as verifiers has it under ``[env]``, an ``EnvConfig``, or
            an ``Env``, whose taskset may be a view such as ``env.taskset.take(5)``. An agent that has no harness gets
            that of the taskset, else ``null``, a chat loop with the environment's tools; one without a runtime is a
            process of this machine.
        limit: How many tasks are taken; all when None, which an infinite taskset cannot give.
        effects: What an episode changes, as of ``trunkline.External``: forks run it again.
        masks: What may differ in its requests when it runs again, as of ``trunkline.External``.
        on_divergence: What becomes of an episode that, run again, asks something else, as of the same.

    Raises:
        ConfigError: The extra ``verifiers`` is missing, the environment cannot be made, or it needs a container, a
            sandbox or a tunnel.
    """
    check_optional(check_int, "from_verifiers: limit", limit, 1)
    check_that(isinstance(masks, list | tuple), "from_verifiers: masks must be a list of regular expressions", masks)
    vf = load_extra("verifiers.v1", "verifiers", "from_verifiers")
    given = env.config if isinstance(env, vf.Env) else env
    made = _made(vf, given)
    if isinstance(env, vf.Env) and type(env) is not type(made):
        raise ConfigError(
            f"from_verifiers: verifiers makes a {type(made).__name__} of this configuration, and not a "
            f"{type(env).__name__}: name its package in the configuration, as id"
        )
    episodes = _episodes(vf, given, made)
    taskset = env.taskset if isinstance(env, vf.Env) else made.taskset
    roles = tuple(_agents(vf, made.config))
    return VerifiersEnvironment(
        _read_tasks(taskset, made, limit),
        External(
            agent=episodes,
            effects=effects,
            masks=(*masks, _FOLDERS),
            on_divergence=on_divergence,
            roles=roles if len(roles) > 1 else (),
        ),
        episode_reward,
    )


def _made(vf: Any, given: Any) -> Any:
    """Make the environment of a configuration; ConfigError where it cannot be made, or not played."""
    raw = {"taskset": {"id": given}} if isinstance(given, str) else given
    if not isinstance(raw, dict | vf.EnvConfig):
        raise ConfigError(
            f"from_verifiers takes the id of a taskset, a configuration or an environment, not {short_repr(given)}"
        )
    try:
        config = vf.resolve_env_config(copy.deepcopy(raw))
        filled = {name: _filled(vf, config, name, agent) for name, agent in _agents(vf, config).items()}
        made = vf.load_environment(config.model_copy(update=filled))
    except ConfigError:
        raise
    except (Exception, SystemExit) as problem:
        shown = short_repr(redact(given) if isinstance(given, dict | str) else type(given))
        why = without_secrets(describe_error(problem))
        raise ConfigError(f"from_verifiers: {shown} cannot be made: {why}") from problem
    _check(vf, made)
    return made


def _agents(vf: Any, config: Any) -> dict[str, Any]:
    """Return the configurations of an environment's agents by their names."""
    return {name: value for name, value in config if isinstance(value, vf.AgentConfig)}


def _filled(vf: Any, config: Any, name: str, agent: Any) -> Any:
    """Return an agent's configuration with what it leaves open, and its own name as that of its model."""
    if agent.client is None and agent.model not in {None, name}:
        raise ConfigError(
            f"from_verifiers: agent {name} names the model {short_repr(agent.model)}, and all agents ask the run's "
            "model: leave its model out, or give it a client of its own"
        )
    update: dict[str, Any] = {} if agent.client is not None else {"model": name}
    if agent.harness is None:
        own = vf.default_harness_id(config.taskset.id)
        own = "null" if own == "bash" else own  # bash is for a taskset that brings none
        update["harness"] = vf.harness_config_type(own).model_validate({"id": own})
    if "runtime" not in agent.model_fields_set:
        update["runtime"] = vf.SubprocessConfig()
    return agent.model_copy(update=update)


def _check(vf: Any, made: Any) -> None:
    """Refuse an environment that needs a container, a sandbox or a tunnel."""
    config, kind = made.config, type(made.taskset).task_type()
    if config.max_concurrent_agents != 1:
        raise ConfigError(
            f"from_verifiers: max_concurrent_agents is {config.max_concurrent_agents}: leave it at 1, since which of "
            "several agents gets which reply is a matter of time. Episodes run side by side in any case"
        )
    tools = [*made.taskset.toolsets(config.taskset), *kind.toolsets(config.taskset.task)]
    for tool in tools:
        where = getattr(getattr(tool.config, "runtime", None), "type", _SUBPROCESS)
        if getattr(tool.config, "url", None) is None and where != _SUBPROCESS:
            raise _refused(f"its tools {type(tool).__name__} run in {where}", "set their runtime to subprocess")
    if any(one.__name__ == "IsolatedVerifierEnv" for one in type(made).__mro__):
        raise _refused(f"{type(made).__name__} verifies in a container of its own", "take another environment")
    if kind.NEEDS_CONTAINER:
        raise _refused(f"its tasks, {kind.__name__}, need a container", "take others")
    for name, agent in _agents(vf, config).items():
        harness = vf.load_harness(agent.harness)
        known = f"agent {name} has the harness {short_repr(agent.harness.id)}, which"
        if agent.runtime.type != _SUBPROCESS:
            raise _refused(f"agent {name} runs in {agent.runtime.type}", "set its runtime to subprocess, if it may")
        if harness.NEEDS_CONTAINER:
            raise _refused(f"{known} needs a container", "take the harness null, or one of the taskset's own")
        if harness.EXECUTES_CODE:
            raise _refused(f"{known} runs what the model writes, and needs a sandbox", "take the harness null")
        if tools and not harness.SUPPORTS_MCP:
            raise _refused(f"{known} takes no tools, and the environment has some", "take the harness null")


def _refused(why: str, instead: str) -> ConfigError:
    return ConfigError(
        f"from_verifiers: {why}. Episodes run on this machine, without a container, a sandbox or a tunnel: {instead}"
    )


def _read_tasks(taskset: Any, made: Any, limit: int | None) -> list[Task]:
    """Return the tasks of a taskset; ConfigError where one needs what is not there, or cannot be sent to a worker."""
    where = f"from_verifiers: taskset {short_repr(made.config.taskset.id)}"
    if limit is None and not taskset.bounded:
        raise ConfigError(f"{where} is infinite: say how many tasks are taken, limit=100")
    try:
        found = [_read_task(task, made) for task in itertools.islice(taskset, limit)]
    except ConfigError:
        raise
    except (Exception, SystemExit) as problem:
        raise ConfigError(f"{where} cannot be read: {describe_error(problem)}") from problem
    if not found:
        raise ConfigError(f"{where} has no task")
    return found


def _read_task(task: Any, made: Any) -> Task:
    data = task.data
    name = f"{made.config.env_id}:{data.idx}"
    for needs, what in (
        (data.image is not None, f"the image {short_repr(data.image)}"),
        (data.agent_user is not None, "a user of its own"),
        ("*" not in data.network_allow or bool(data.network_block), "rules for its network"),
    ):
        if needs:
            raise _refused(f"task {short_repr(name)} has {what}", "take other tasks")
    changed = data.model_dump(exclude_defaults=True).keys()
    written = data.model_dump(mode="json", include={*changed})
    if _task(made, written).data != data:
        raise ConfigError(f"from_verifiers: task {short_repr(name)} is another one when it is read from its JSON")
    system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    if data.prompt is None or isinstance(data.prompt, str):
        said = [{"role": "user", "content": data.prompt}] if data.prompt else []
    else:
        wire = load_extra("verifiers.v1.dialects.chat", "verifiers", "from_verifiers").message_to_wire
        said = [wire(one) for one in data.prompt]
    answer = getattr(data, "answer", None)
    return Task(
        id=name,
        messages=[*system, *said] or [{"role": "user", "content": data.description or data.name or name}],
        reference=(answer,) if isinstance(answer, str) and answer.strip() else (),
        metadata={_DATA: written},
    )


def _task(made: Any, written: Any) -> Any:
    """Return a task of the environment from its data, as verifiers itself does in another process."""
    kind = type(made.taskset).task_type()
    return kind(kind.data_type().model_validate(written), made.config.taskset.task)


_known: Final[dict[str, Callable[..., Any]]] = {}
"""Agents by their qualified names, which other processes make them of again."""


def __getattr__(name: str) -> Any:
    """Find an agent by its qualified name, in a process that has not made it yet."""
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    vf = load_extra("verifiers.v1", "verifiers", "from_verifiers")
    given = msgspec.json.decode(unquote(name.removeprefix(_PREFIX)))
    return _episodes(vf, given, _made(vf, given))


def _episodes(vf: Any, given: Any, made: Any) -> Callable[..., Any]:
    """Return the episodes of an environment as an agent, whose name leads another process to it."""
    if isinstance(given, vf.EnvConfig):
        given = made.config.model_dump(mode="json")
    try:
        written = msgspec.json.encode(given, order="deterministic").decode()
        there = _made(vf, msgspec.json.decode(written)).config.model_dump()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise ConfigError(f"from_verifiers: the configuration is no JSON: {describe_error(problem)}") from None
    if there != made.config.model_dump():
        raise ConfigError("from_verifiers: the configuration is another one when it is read from its JSON")
    if redact(given) != given:
        raise ConfigError(
            "from_verifiers: the configuration seems to hold a key, which run files would hold: name a variable instead"
        )
    qualname = _PREFIX + written.replace("%", "%25").replace(".", "%2E").replace("<", "%3C")
    if qualname not in _known:
        _known[qualname] = _player(vf, made, qualname)
    return _known[qualname]


def _player(vf: Any, made: Any, qualname: str) -> Callable[..., Any]:
    async def play(client: Any, task: Task) -> tuple[str | None, dict[str, Any]]:
        if _DATA not in task.metadata:
            raise ConfigError(
                f"task {short_repr(task.id)} has no data of verifiers: run the tasks that from_verifiers gave"
            )
        own = _task(made, task.metadata[_DATA])
        endpoint = vf.EvalClientConfig(base_url=str(client.base_url).rstrip("/"), api_key_var=_NO_KEY)
        env = copy.copy(made)  # what it serves belongs to this episode
        async with env.serving():
            episode = await env.run_episode(
                own, vf.ModelContext(model="agent", client=endpoint), on_trace=lambda trace: trace.watch(_stop_at_limit)
            )
        if not env.complete(episode):
            raise RuntimeError(_why(episode))
        return _answer(episode), facts_of(episode)

    play.__module__, play.__qualname__ = __name__, qualname
    return play


def _stop_at_limit(trace: Any) -> None:
    """Stop an agent at a limit of the run as at one of its own, so that its environment scores what there is."""
    error = trace.calls[-1].error if trace.calls else None
    if error is not None and error.status_code == 429 and "insufficient_quota" in error.message:
        trace.stop("trunkline_limit")


def _why(episode: Any) -> str:
    """Say what broke an episode."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors if not trace.ok)]
    if not errors:
        return "the episode is not complete"
    return f"the episode broke: {errors[-1].type}: {excerpt(errors[-1].message, 300)}"


def _scored(episode: Any) -> list[Any]:
    """Return the traces whose rewards are the episode's: the trainable ones, or all where none is."""
    return [trace for trace in episode.traces if trace.agent.trainable] or list(episode.traces)


def _answer(episode: Any) -> str | None:
    """Return what the agent that counts said last."""
    return next((trace.last_reply or None for trace in reversed(_scored(episode))), None)


def facts_of(episode: Any) -> dict[str, Any]:
    """Return the rewards and metrics of an episode, trace by trace, as ``final_info`` keeps them."""
    scored = {id(trace) for trace in _scored(episode)}
    traces = [
        {
            "agent": trace.agent.name,
            "counts": id(trace) in scored,
            "reward": trace.reward if any(one is not None for one in trace.rewards.values()) else None,
            "rewards": {name: one and [one.score, one.weight] for name, one in trace.rewards.items()},
            "metrics": dict(trace.metrics),
            "stop": trace.stop_condition,
        }
        for trace in episode.traces
    ]
    # They are in the order in which they ended, which is a matter of time where agents run side by side.
    return {"traces": sorted(traces, key=lambda one: (one["agent"], msgspec.json.encode(one)))}


def episode_reward(trajectory: Trajectory) -> Scored | dict[str, Any]:
    """The reward that an environment of verifiers gave an episode; parts of it and metrics stand beside it.

    It is the mean over the traces of trainable agents that have one; with one agent there is one trace. Names of parts
    begin with that of the agent where there are several.

    Args:
        trajectory: A rollout of ``from_verifiers``.
    """
    traces = (trajectory.final_info or {}).get("traces") or []
    rewards = [one["reward"] for one in traces if one["counts"] and one["reward"] is not None]
    if not rewards:
        return Scored(math.nan, "the environment gave no reward")
    several = len({one["agent"] for one in traces}) > 1
    parts: dict[str, list[float]] = {}
    for one in traces:
        found = {name: value and value[0] for name, value in one["rewards"].items()}
        for name, value in {**one["metrics"], **found}.items():
            named = f"{one['agent']}.{name}" if several or name == "reward" else name
            if value is not None:
                parts.setdefault(named, []).append(value)
    means = {name: math.fsum(values) / len(values) for name, values in sorted(parts.items())}
    return {"reward": math.fsum(rewards) / len(rewards), **means}
