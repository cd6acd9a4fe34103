"""Job: what a run does with a task; wire form; checks."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._internal.serialization import SerializedObject, load, module_of, pack
from trunkline._internal.validation import check_int, short_repr
from trunkline.agent import Agent
from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.capabilities import REGIONS
from trunkline.llm.config import LLM
from trunkline.llm.dialects import builtin as dialects
from trunkline.llm.openai_client import as_llm
from trunkline.llm.pricing import EVERYWHERE, MAIN, check_name, prices_named, there_is
from trunkline.llm.types import LLMClient
from trunkline.rollout.budget import Budget
from trunkline.rollout.drivers import ProgramFunction
from trunkline.rollout.external.config import External, check_external
from trunkline.rollout.programs.resources import check_program
from trunkline.scoring.filters.base import Filter, check, name_of
from trunkline.scoring.rewards import Reward
from trunkline.scoring.rewards.base import full_name, policy_of, short_name, step_sum
from trunkline.scoring.rewards.grading import takes_environment
from trunkline.strategies.base import INSIDE, Strategy, at_once, check_plan, stepwise
from trunkline.strategies.stopping import Stopping
from trunkline.team.team import Team
from trunkline.tools.environment import rewards_steps
from trunkline.tools.environment_pool import EnvironmentPool
from trunkline.tools.mcp.config import MCP
from trunkline.tools.tool import check_environment_used
from trunkline.tree.records import check_version

if TYPE_CHECKING:
    from trunkline.llm.pricing import Price
    from trunkline.llm.token_ids.base import TokenMode


AnyLLM = LLM | BatchLLM | LLMClient
"""Endpoints as data, or a batch engine or live LLM, which stays in its process."""


def as_llms(given: Any) -> dict[str, AnyLLM]:
    """Return the run's LLMs by name from what a user gave; ConfigError for anything else."""
    if not isinstance(given, Mapping):
        return {MAIN: _as_one(given)}
    if not given:
        raise ConfigError("llm names no LLM: give a URL, an LLM, or several by their names")
    found: dict[str, AnyLLM] = {}
    for name, one in given.items():
        check_name("llm: a name", name)
        try:
            found[name] = _as_one(one)
        except ConfigError as problem:
            raise ConfigError(f"llm {short_repr(name)}: {problem}") from None
    if (taken := live({name: one for name, one in found.items() if name == MAIN})) in found:
        raise ConfigError(f"llm {short_repr(taken)}: calls of the LLM without a name are on record as that; rename it")
    return found


def _as_one(llm: Any) -> AnyLLM:
    if llm is None:
        return LLM()
    if isinstance(llm, str):
        return LLM(llm)
    return llm if isinstance(llm, LLM | BatchLLM) else as_llm(llm)


def check_asked(llms: Mapping[str, AnyLLM], agents: Sequence[Agent], *, alone: bool) -> None:
    """Refuse agents without their LLM, LLMs that no agent asks (with ``alone``), prices of only some LLMs."""
    for agent in agents:
        if agent.llm not in llms:
            asked = f"the LLM {short_repr(agent.llm)}" if agent.llm else "the LLM without a name"
            raise ConfigError(
                f"{short_repr(agent.name)} asks {asked}, and the run has {there_is(llms)}: "
                'give it, llm={"NAME": LLM(...)}, or name another one, llm="NAME" of a role or an agent'
            )
    idle = set(llms) - {agent.llm for agent in agents}
    if alone and idle:
        raise ConfigError(
            f"no agent calls the LLM {there_is(idle)}: leave it out, or name it as llm of a role or an agent"
        )
    free = [name for name, llm in llms.items() if not prices_of({name: llm})]
    if free and len(free) < len(llms):
        raise ConfigError(
            f"of several LLMs some have a price, and {there_is(free)} has none; give each one, "
            "Price(prompt=0, generated=0) if it is free"
        )


def prices_of(llms: Mapping[str, AnyLLM]) -> dict[str, Price]:
    """Return prices by the recorded name of an endpoint; empty without a price."""
    found: dict[str, Price] = {}
    for name, llm in llms.items():
        found |= prices_named(name, _prices(llm))
    return found


def _prices(llm: AnyLLM) -> dict[str, Price]:
    if isinstance(llm, LLM):
        return llm.price
    price = getattr(llm, "price", None)
    return {} if price is None else {EVERYWHERE: price}


def tokens_of(llm: AnyLLM) -> TokenMode | None:
    """Return how an LLM keeps token ids; None where it does not."""
    return getattr(llm, "tokens", None)


def live(llms: Mapping[str, AnyLLM]) -> str | None:
    """Return the class name of an LLM that cannot leave this process; None where all can."""
    return next((type(llm).__name__ for llm in llms.values() if not isinstance(llm, LLM)), None)


def keys_of(llms: Mapping[str, AnyLLM]) -> list[str]:
    """Return the keys of all endpoints, which nothing of a foreign agent's may hold."""
    return [key for llm in llms.values() if isinstance(llm, LLM) and (key := llm.key())]


def describe(llm: AnyLLM) -> dict[str, Any]:
    """Describe an LLM for the run file: everything but its secrets."""
    if isinstance(llm, LLM):
        return llm.settings()
    mode = tokens_of(llm)
    exact = {} if mode is None else {"tokens": mode}
    return {"kind": type(llm).__name__, "price": _prices(llm), **exact}


def region_of(strategy: Strategy) -> str | None:
    """Return the region whose log-probabilities a strategy needs, or None; ConfigError for an unknown region."""
    region = getattr(strategy, "uncertain", None)
    if region is not None and not (isinstance(region, str) and region in REGIONS):
        known = ", ".join(REGIONS)
        raise ConfigError(f"{type(strategy).__name__}: uncertain must be one of {known}, not {short_repr(region)}")
    return region


def likeliest_of(strategy: Strategy) -> int:
    """Return how many top log-probabilities a strategy needs at each token."""
    return check_int(f"{type(strategy).__name__}: likeliest", getattr(strategy, "likeliest", 2), 1, 20)


def forks_inside(strategy: Strategy) -> bool:
    """Return whether a strategy forks inside turns."""
    return bool(getattr(strategy, "inside", False))


def check_needs(strategy: Strategy, agent: Agent, llm: AnyLLM) -> None:
    """Refuse a strategy whose log-probabilities or forks inside turns the agent or its LLM does not provide."""
    name = type(strategy).__name__
    whose = "" if agent.name == "agent" else f" of {short_repr(agent.name)}"
    region = region_of(strategy)
    likeliest = likeliest_of(strategy)
    if region is not None and (agent.sampling.top_logprobs or 0) < likeliest:
        raise ConfigError(
            f"{name} looks at how sure the model was (region {region!r}): set sampling.logprobs=True and "
            f"sampling.top_logprobs{whose} to {likeliest} or more (--top-logprobs {likeliest}), or take a strategy "
            "that needs none (Chain, TreeGRPO)"
        )
    if forks_inside(strategy):
        mode = tokens_of(llm)
        if mode is None or mode.api == "chat":
            raise ConfigError(
                f"{name} forks inside turns, which needs {INSIDE}; a strategy that forks between turns (Adaptive, "
                "TreeGRPO) needs none"
            )


class Refill(NamedTuple):
    """Number of groups to keep, and the most tasks that may be started for them."""

    groups: int
    max_tasks: int

    @classmethod
    def of(cls, groups: int | None, max_tasks: int | None, tasks: int) -> Refill | None:
        """Check ``groups`` and ``max_tasks`` of a run of so many tasks; None where neither is given."""
        if groups is None:
            if max_tasks is not None:
                raise ConfigError("max_tasks says how many tasks groups may take: give groups as well")
            return None
        check_int("groups", groups, 1)
        most = tasks if max_tasks is None else min(tasks, check_int("max_tasks", max_tasks, 1))
        if groups > most:
            raise ConfigError(f"groups is {groups}, and there are {most} tasks to make them of: give more tasks")
        return cls(groups, most)


class Job(msgspec.Struct, kw_only=True):
    """What a run does with every task; ``parties`` engines share the LLM limits; ``traced`` is "spans" or "content"."""

    agent: Agent
    strategy: Strategy
    reward: Reward | None
    llm: AnyLLM | Mapping[str, AnyLLM]
    seed: int
    cache: str | None = None
    filters: Sequence[Filter] = ()
    budget: Budget | None = None
    task_budget: Budget | None = None
    stopping: Stopping = Stopping()
    weights: str | None = None
    program: ProgramFunction | External | None = None
    parties: int = 0
    traced: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.agent, Agent):
            raise ConfigError(f"agent must be an Agent, not {self.agent!r:.60}")
        if not isinstance(self.strategy, Strategy):
            raise ConfigError(f"strategy must have rollouts() and start(view), which {self.strategy!r:.60} lacks")
        if self.reward is not None and not callable(self.reward):
            raise ConfigError(f"reward must be a function of a trajectory, not {self.reward!r:.60}")
        if self.reward is None and rewards_steps(self.agent.environment):
            self.reward = step_sum
        policy_of(self.reward)
        if takes_environment(self.reward) and self.agent.environment is None:
            raise ConfigError(
                f"reward {short_name(self.reward)} takes the rollout's environment, and agent {self.agent.name!r} has "
                "none: set Agent(environment=...)"
            )
        self.filters = check(self.filters, scored=self.reward is not None)
        check_int("seed", self.seed, 0, 2**63 - 1)
        if (fits := getattr(self.strategy, "fits", None)) is not None:
            # A strategy may look for a tool by its name, and any of those that ask may have it.
            tools = {tool.name: tool for asker in self.askers for tool in asker.tools}
            fits(msgspec.structs.replace(self.agent, tools=tuple(tools.values())))
        check_plan(self.strategy)
        check_asked(self.llms, self.askers, alone=self.program is None or isinstance(self.program, Team))
        for asker in self.askers:
            check_needs(self.strategy, asker, self.llms[asker.llm])
        for name in ("budget", "task_budget"):
            if not isinstance(getattr(self, name), Budget | None):
                raise ConfigError(f"{name} must be a Budget, not {short_repr(getattr(self, name))}")
        check_version("policy_version", self.weights)
        self._check_pool(self.agent.environment)
        if isinstance(self.agent.environment, MCP):
            self.agent.environment.check_forks(self.strategy)
        self._check_program()
        self.stopping.check(self.strategy, scored=self.reward is not None)

    def _check_program(self) -> None:
        """Refuse an agent that does not fit what plays its rollouts."""
        if self.program is None:
            check_environment_used(self.agent.environment, self.agent.tools)
            return
        if isinstance(self.program, External):
            check_external(self.program, self.agent, self.strategy)
        else:
            check_program(self.program, self.agent)
        self._check_program_tokens()

    def _check_pool(self, pool: Any) -> None:
        """Refuse a pool whose environments would be held by rollouts that wait for others, which wait for these."""
        if isinstance(pool, EnvironmentPool) and isinstance(pool.cls, MCP):
            raise ConfigError(
                "an EnvironmentPool cannot keep MCP servers, which each rollout starts anew: leave it out"
            )
        stepwise_name = type(self.strategy).__name__ if stepwise(self.strategy) else ""
        paid = self.task_budget is not None and self.task_budget.limits.keys() - {"rollouts"}
        if isinstance(pool, EnvironmentPool) and (stepwise_name or paid) and not pool.movable:
            why = f"strategy {stepwise_name}" if stepwise_name else "a budget of the task"
            raise ConfigError(
                f"environment {_named(pool)} is kept in an EnvironmentPool and has no snapshots: with {why}, rollouts "
                "wait between steps for others, which may wait for their environments; give the class snapshot() and "
                "restore(), or leave the pool out"
            )

    def _check_program_tokens(self) -> None:
        """Refuse what a program cannot have with token ids."""
        without = [name for name, llm in self.llms.items() if tokens_of(llm) is None]
        if without and len(without) < len(self.llms):
            raise ConfigError(
                f"of several LLMs of a program some keep token ids, and {there_is(without)} keeps none; give each one "
                "tokens=TokenMode(...) (--tokens, and tokens=... in --llm), or none"
            )
        if forks_inside(self.strategy):
            raise ConfigError(
                f"{type(self.strategy).__name__} forks inside turns, which a program and a team cannot do; take a "
                "strategy that forks between turns (Adaptive, TreeGRPO)"
            )

    @property
    def llms(self) -> Mapping[str, AnyLLM]:
        """LLMs by name; the empty name for a single one."""
        return self.llm if isinstance(self.llm, Mapping) else {MAIN: self.llm}

    @property
    def askers(self) -> list[Agent]:
        """Agents known to ask: a team's roles, or the run's agent, beside which a program may have more."""
        if isinstance(self.program, Team):
            return [member.agent for member in self.program.members.values()]
        return [self.agent]

    @property
    def prices(self) -> dict[str, Price]:
        """Prices by the recorded name of an endpoint; empty without a price."""
        return prices_of(self.llms)

    @property
    def prices_of_llm(self) -> dict[str, dict[str, Price]]:
        """The same of each LLM alone, by its name."""
        return {name: prices_of({name: llm}) for name, llm in self.llms.items()}

    @property
    def profiled(self) -> bool:
        """Whether calls say who asked."""
        return self.program.profiling if isinstance(self.program, Team) else True

    @property
    def timing(self) -> list[str]:
        """Options that make the trees depend on who was faster."""
        found = ["enough"] if self.stopping.enough is not None else []
        found += ["budget"] if self.budget is not None else []
        return found + (["deadline"] if self.task_budget is not None and self.task_budget.seconds is not None else [])


_PLAIN = ("seed", "cache", "budget", "task_budget", "stopping", "weights", "parties", "traced")
"""Fields of a job that are data and are encoded unchanged."""


class EncodedJob(msgspec.Struct):
    """A job as data: user code as serialized objects; tools, dialect and environment beside the agent; keys apart."""

    agent: Agent
    tools: list[SerializedObject]
    dialect: str | SerializedObject
    environment: SerializedObject | None
    strategy: SerializedObject
    reward: SerializedObject | None
    llms: dict[str, LLM]
    secrets: dict[str, str]
    seed: int
    cache: str | None
    filters: list[SerializedObject]
    budget: Budget | None
    task_budget: Budget | None
    stopping: Stopping
    weights: str | None
    program: SerializedObject | None
    parties: int
    traced: str
    path: list[str]
    before_tool: SerializedObject | None = None
    mcp: str = ""

    def load_agent(self) -> Agent:
        """Return the agent with its tools, dialect and environment, importing user code from the job's path."""
        sys.path[:0] = [entry for entry in self.path if entry not in sys.path]
        return msgspec.structs.replace(
            self.agent,
            tools=[load(tool) for tool in self.tools],
            dialect=self.dialect if isinstance(self.dialect, str) else load(self.dialect),
            environment=None if self.environment is None else load(self.environment),
            before_tool=None if self.before_tool is None else load(self.before_tool),
        )


def import_path() -> list[str]:
    """Return ``sys.path`` with absolute entries."""
    return [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - entries may be empty, or no folders


def pack_job(job: Job) -> bytes:
    """Encode a job with its secrets for worker processes; raises as ``as_packed``."""
    packed = as_packed(job)
    packed.secrets = {name: llm.secret for name, llm in packed.llms.items() if llm.secret is not None}
    if isinstance(job.agent.environment, MCP):
        packed.mcp = job.agent.environment.secret
    return msgspec.msgpack.encode(packed)


def as_packed(job: Job, *, by_value: bool = True) -> EncodedJob:
    """Return a job as data without secrets; CrossingError names the first object that cannot be serialized."""
    if live(job.llms):
        raise ConfigError(
            "a live LLM object stays in its process: run with workers=0, or give an endpoint's URL as trunkline.LLM"
        )

    def serialized(value: object, what: str) -> SerializedObject:
        return pack(value, what, by_value=by_value)

    dialect, environment, hook = job.agent.dialect, job.agent.environment, job.agent.before_tool
    return EncodedJob(
        agent=msgspec.structs.replace(job.agent, tools=(), dialect="native", environment=None, before_tool=None),
        tools=[serialized(tool, f"tool {tool.name!r}") for tool in job.agent.tools],
        dialect=dialect if isinstance(dialect, str) else serialized(dialect, f"dialect {type(dialect).__name__}"),
        environment=None if environment is None else serialized(environment, f"environment {_named(environment)}"),
        strategy=serialized(job.strategy, f"strategy {type(job.strategy).__name__}"),
        reward=None if job.reward is None else serialized(job.reward, f"reward {short_name(job.reward)!r}"),
        llms={name: llm for name, llm in job.llms.items() if isinstance(llm, LLM)},
        secrets={},
        filters=[serialized(one, f"filter {name_of(one)}") for one in job.filters],
        program=None if job.program is None else serialized(job.program, f"program {_named(job.program)}"),
        path=import_path(),
        before_tool=None if hook is None else serialized(hook, f"before_tool {_named(hook)}"),
        **{name: getattr(job, name) for name in _PLAIN},
    )


def unpack_job(data: bytes) -> Job:
    """Decode a job in a worker; raises as ``from_packed``."""
    return from_packed(msgspec.msgpack.decode(data, type=EncodedJob))


def from_packed(packed: EncodedJob) -> Job:
    """Return the job of its encoding; CrossingError if user code in it cannot be imported here."""
    agent = packed.load_agent()
    if packed.mcp:
        agent.environment.receive(packed.mcp)
    return Job(
        agent=agent,
        strategy=load(packed.strategy),
        reward=None if packed.reward is None else load(packed.reward),
        llm={name: llm.with_secret(packed.secrets.get(name)) for name, llm in packed.llms.items()},
        filters=[load(one) for one in packed.filters],
        program=None if packed.program is None else load(packed.program),
        **{name: getattr(packed, name) for name in _PLAIN},
    )


def settings(job: Job) -> dict[str, Any]:
    """Describe a job for the run file: everything that gives its results meaning, and no key."""
    agent = job.agent
    fields = dict(zip(Agent.__struct_encode_fields__, msgspec.structs.astuple(agent), strict=True))
    if fields.pop("before_tool") is not None:  # left out where there is no hook, as in earlier run files
        fields["before_tool"] = _program_name(agent.before_tool)
    return {
        "agent": {
            **fields,
            "llm": agent.llm or None,
            "sampling": msgspec.to_builtins(agent.sampling),
            "tools": [tool.definition for tool in agent.tools],
            "dialect": dialects.describe(dialects.find(agent.dialect)),
            "environment": None if agent.environment is None else _named(agent.environment),
        },
        "strategy": {"kind": type(job.strategy).__name__, "options": _options(job.strategy)},
        "filters": [{"kind": name_of(one), "options": _options(one)} for one in job.filters],
        "reward": None if job.reward is None else full_name(job.reward),
        "program": None if job.program is None else _program_name(job.program),
        "team": job.program.settings() if isinstance(job.program, Team) else None,
        "llm": describe(job.llms[MAIN]) if MAIN in job.llms else None,
        "llms": {name: describe(llm) for name, llm in job.llms.items() if name} or None,
        "weights": job.weights,
        "seed": job.seed,
        "cache": job.cache,
        "budget": None if job.budget is None else job.budget.given,
        "task_budget": None if job.task_budget is None else job.task_budget.given,
        "stopping": msgspec.to_builtins(job.stopping),
        "timing_dependent": job.timing,
        **({"external": job.program.settings()} if isinstance(job.program, External) else {}),
        **({"mcp": agent.environment.settings()} if isinstance(agent.environment, MCP) else {}),
    }


def _program_name(program: ProgramFunction | External) -> str:
    """Return module and name of a program, as far as it has them."""
    if isinstance(program, External):
        if isinstance(program.agent, str):
            return program.agent
        program = program.agent
    module = module_of(program)
    return f"{module}:{_named(program)}" if module else _named(program)


def _named(environment: Any) -> str:
    """Return where an environment comes from, as far as it has a name."""
    if isinstance(environment, EnvironmentPool):  # how many are kept gives no meaning to a result
        environment = environment.cls
    return str(getattr(environment, "__qualname__", type(environment).__name__))


def _options(given: Strategy | Filter) -> Any:
    """Return the options of a strategy or filter as data, functions by their names."""
    try:
        return msgspec.to_builtins(given, enc_hook=_called)
    except (TypeError, msgspec.MsgspecError):
        return repr(given)


def _called(option: object) -> str:
    if callable(option):
        return short_name(option)
    raise TypeError(f"{type(option).__name__} is no data")


def slots_for(job: Job, requests: int) -> int:
    """Return how many concurrent tasks keep so many requests in flight."""
    return max(2, math.ceil(1.25 * requests / at_once(job.strategy)))


def parties(llm: LLM, workers: int) -> int:
    """Return how many engines can share an LLM's limits: each needs a slot."""
    return min(workers, llm.max_concurrency, llm.limits.endpoint_concurrency or workers)


def slot_kinds(llm: LLM) -> dict[str, int]:
    """Return how many requests may be in flight: in the run, and at each endpoint where that limit is lower."""
    most, each = llm.max_concurrency, llm.limits.endpoint_concurrency
    if each is None or each >= most:
        return {"run": most}
    return {"run": most} | {f"endpoint {number}": each for number in range(len(llm.base_urls))}
