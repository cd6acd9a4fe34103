"""The commands ``run`` and ``resume``: an agent or a team over a file of questions, against any endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from click.core import ParameterSource

from trunkline._internal.registry import load_named
from trunkline._internal.validation import check_int
from trunkline.agent import Agent
from trunkline.cli.options import (
    AGENT_OPTION_NAMES,
    API_KEY_ENV,
    BASE_URL,
    BUDGET,
    FAIL_ON_ERROR,
    MAX_RETRIES,
    PRICE,
    TIMEOUT,
    FileCommand,
    GroupedCommand,
    StopWhen,
    agent_options,
    read_sampling,
    reward_option,
)
from trunkline.cli.output import print_plan, tell
from trunkline.cli.targets import (
    HELP,
    changed_llms,
    find_run,
    load_servers,
    make_external,
    make_team,
    make_verifiers,
    read_llms,
    run_file_status,
)
from trunkline.cli.watch import drive, watching_options
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.dialects.builtin import DIALECTS
from trunkline.llm.pricing import MAIN, there_is
from trunkline.llm.request import Sampling
from trunkline.llm.types import Limits
from trunkline.protocol.job import likeliest_of
from trunkline.runner.plan import RunSpec, plan
from trunkline.runner.pool import Pool
from trunkline.runner.retry import Retry, asked_again
from trunkline.runner.stored_job import stored_job
from trunkline.runner.worker_pool import MOST_WORKERS
from trunkline.scoring.filters import FILTERS
from trunkline.scoring.rewards.reading import NONE, read_rewards
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.datasets.text import read_fields
from trunkline.store.lock import set_aside
from trunkline.store.reader import RunReader
from trunkline.strategies import STRATEGIES
from trunkline.strategies.base import Strategy
from trunkline.team import TEAMS
from trunkline.team.team import Team
from trunkline.tools.tool import load_tools

if TYPE_CHECKING:
    from trunkline.protocol.job import Job
    from trunkline.types import Task


_RUN_OF_MAIN = frozenset(("base_url", "max_concurrency", "rpm", "tpm", "price", "tokens"))
"""Options of the LLM without a name only."""

_AS_GIVEN: Final = (
    *("seed", "cache", "continue_from", "groups", "max_tasks", "durable"),
    *("grace", "budget", "task_budget", "enough", "cut_tail", "stop_when"),
)
"""Options that are those of the run, by the same names."""


_GROUPS: Final = {
    "Questions and model": "--field --limit --model --base-url --llm --api-key-env --price",
    "Agent": "--system --tools --mcp --environment --before-tool --dialect --malformed --on-void-turn --max-turns",
    "Teams and programs": "--team --role --program",
    "Agents of other frameworks": f"{AGENT_OPTION_NAMES} --verifiers",
    "Sampling": "--max-tokens --temperature --top-p --stop --set --logprobs --top-logprobs --tokens --seed --send-seed "
    "--cache",
    "Tries": "--rollouts --strategy --continue-from --wave --enough --stop-when --cut-tail",
    "Rewards and filters": "--reward --filter --groups --max-tasks",
    "Limits": "--budget --task-budget --fail-on-error --timeout --max-retries --grace",
    "Throughput": "--workers --max-concurrency --rpm --tpm --pool --address",
    "Run file": "--out --fresh --force --durable --dry-run",
    "Watching": "--verbose --agents-every --json --log --log-level --metrics --server-metrics --sink --otel",
}
"""The options of ``run`` by what they are about."""


@click.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("questions", type=click.Path(), required=False)
@click.option(
    "--model", "-m", required=True, help="Model name, as the endpoint knows it; of a team, that of its roles."
)
@BASE_URL
@click.option("--llm", "llms", multiple=True, metavar="NAME=URL[,OPTION=VALUE,...]", help=HELP)
@API_KEY_ENV
@click.option(
    "--tools",
    multiple=True,
    metavar="NAME|MODULE[:ATTR]|FILE.py[:ATTR]",
    help="Tools of the agent: python, shell, files, calculator, http_get=HOST+HOST, or your own; repeatable, or with "
    "commas.",
)
@click.option(
    "--mcp",
    multiple=True,
    type=click.Path(),
    metavar="FILE.json",
    help='Servers of the Model Context Protocol whose tools the agent gets, as {"mcpServers": {...}}; repeatable. '
    "--effects says what they change.",
)
@click.option("--environment", metavar="MODULE:ATTR", help="Class or pool of the environments that the tools work on.")
@click.option(
    "--before-tool", metavar="MODULE:FUNCTION", help="Function that may refuse or change each call of a tool."
)
@click.option("--system", default="", help="System prompt.")
@click.option(
    "--rollouts", "--num-rollouts", "--epochs", "-r", type=int, help="Tries of each question, as chains.  [default: 1]"
)
@click.option(
    "--strategy",
    default="chain",
    show_default=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help=f"Where tries start: {STRATEGIES}, or your own as MODULE:CLASS. "
    "For example tree-grpo:trees=2,forks=2,rounds=1",
)
@click.option(
    "--continue-from",
    "--from",
    type=click.Path(),
    metavar="RUN",
    help="Go on from the trees of an earlier run; QUESTIONS then names some of its tasks, or is left out.",
)
@reward_option(default="exact_match")
@click.option("--program", metavar="MODULE:ATTR", help="What plays a try: async def program(rollout).")
@agent_options
@click.option(
    "--verifiers",
    metavar="ID",
    help="A taskset of the package verifiers, in place of QUESTIONS: each try is one of its episodes.",
)
@click.option(
    "--team",
    metavar="NAME[:OPTION=VALUE,...]",
    help=f"Several agents that play a try together: {TEAMS}, or your own as MODULE:CLASS. For example math:rounds=4",
)
@click.option(
    "--role",
    multiple=True,
    metavar="NAME.FIELD=VALUE",
    help="Change a role of the team: verifier.model=NAME, verifier.sampling.temperature=0.2; repeatable.",
)
@click.option(
    "--dialect",
    default="native",
    show_default=True,
    metavar="NAME|MODULE:ATTR",
    help=f"How tools are spoken about: {DIALECTS}, or your own.",
)
@click.option(
    "--malformed",
    type=click.Choice(["return", "repair"]),
    default="return",
    show_default=True,
    help="A tool call of broken JSON goes back to the model, or is repaired (extra: repair).",
)
@click.option(
    "--on-void-turn",
    "--void",
    "on_void_turn",
    type=click.Choice(["tell", "stop"]),
    default="tell",
    show_default=True,
    help="A turn that neither calls a tool nor answers is told so, or ends its try.",
)
@click.option("--max-turns", default=30, show_default=True, help="Model turns a try may take.  [of a team: 100]")
@click.option("--max-tokens", type=int, help="Tokens a turn may generate.")
@click.option("--temperature", type=float, help="Sampling temperature.")
@click.option("--top-p", type=float, help="Nucleus sampling.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends a turn; repeatable.")
@click.option(
    "--set",
    multiple=True,
    metavar="sampling.NAME=VALUE",
    help="Any sampling parameter, with a value in JSON or as text: sampling.top_k=20, sampling.min_p=0.05; "
    "one of another name is sampling.extra.NAME=VALUE; repeatable.",
)
@click.option("--logprobs", is_flag=True, help="Ask for the log-probabilities of what is sampled.")
@click.option(
    "--top-logprobs",
    type=click.IntRange(0, 20),
    metavar="N",
    help="Ask for those of the N likeliest tokens at each place too.  [default: 16 where the strategy needs them]",
)
@click.option(
    "--tokens",
    metavar="chat|completions|generate[:OPTION=VALUE,...]",
    help="Keep token ids and log-probs, asked for by chat completions (vLLM), by /v1/completions from ids (vLLM, "
    "llama.cpp) or by /generate (SGLang); the last two can go on inside turns. "
    "Options: drift, realign_limit, tokenizer, template.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help=f"Rollouts to leave out of training: {FILTERS}, or your own as MODULE:CLASS; repeatable.",
)
@click.option("--groups", type=int, help="Take questions until N groups were kept by the filters.  [default: take all]")
@click.option("--max-tasks", type=int, help="The most questions that --groups may take.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Seed of the run.  [default: that of --from, else random; recorded]",
)
@click.option(
    "--send-seed/--no-send-seed",
    default=True,
    help="Send a seed with each request, by which a run can be repeated; some servers refuse it.  [default: send it]",
)
@click.option(
    "--cache",
    type=click.Path(),
    metavar="FILE",
    help="Answers, kept: a run of the same --seed does not ask again for what is there.",
)
@click.option(
    "--field",
    multiple=True,
    metavar="question=COLUMN,answer=COLUMN,id=COLUMN",
    help="The columns of QUESTIONS that hold the question, the answer, the id, where they have names of their own.",
)
@click.option("--limit", "-n", type=click.IntRange(1), help="Only the first N questions.")
@click.option("--workers", "-w", default=2, show_default=True, help="Worker processes; 0 stays in this one.")
@click.option(
    "--pool",
    type=click.Choice(["local", "inline", "ray"]),
    default="local",
    show_default=True,
    help="Where workers live: on this machine, in this process, or in a Ray cluster (extra: ray).",
)
@click.option(
    "--address",
    help="The Ray cluster: auto, HOST:PORT or ray://HOST:PORT.  [default: $RAY_ADDRESS, or one that starts here]",
)
@click.option(
    "--max-concurrency",
    "--max-connections",
    "-c",
    "-j",
    default=64,
    show_default=True,
    help="Requests in flight, in all.",
)
@click.option("--rpm", type=float, help="Requests a minute, in all.  [default: what the server allows]")
@click.option("--tpm", type=float, help="Tokens a minute, in all.  [default: what the server allows]")
@click.option(
    "--grace",
    default=10.0,
    show_default=True,
    help="Seconds that requests and tools have to come back after Ctrl-C; a second one does not wait.",
)
@TIMEOUT
@MAX_RETRIES
@click.option(
    "--price",
    type=PRICE,
    metavar="prompt=P,generated=G[,cached=C]",
    help="What a million tokens cost, in your currency; the summary then says what the run cost.",
)
@click.option(
    "--budget",
    type=BUDGET,
    metavar="WHAT=N,...",
    help="The most the run may spend: tokens=1e6,money=5 (or rollouts, calls, prompt, generated, tools, seconds).",
)
@click.option("--task-budget", type=BUDGET, metavar="WHAT=N,...", help="The most each question may spend.")
@click.option("--enough", type=click.IntRange(1), metavar="N", help="Cut a question's other tries once N are done.")
@click.option(
    "--cut-tail",
    "--tail",
    "cut_tail",
    type=click.Choice(["censor", "keep"]),
    default="censor",
    show_default=True,
    help="Tries that --enough cuts end as censored, or stay in the run file to be continued.",
)
@click.option(
    "--stop-when",
    "--settled",
    "stop_when",
    type=StopWhen(),
    metavar="answer|R",
    help="Start no more tries of a question whose answer can no longer change, or once one has a reward of R.",
)
@click.option("--wave", type=click.IntRange(1), metavar="N", help="Start so many tries of a question at a time.")
@FAIL_ON_ERROR
@click.option(
    "--out",
    "-o",
    type=click.Path(),
    metavar="FILE",
    help="Run file; one that is there is resumed.  [default: runs/TIME-MODEL-SETTINGS.run, the newest unfinished one]",
)
@click.option("--fresh", is_flag=True, help="Begin anew; a run at --out is renamed FILE.1, FILE.2 and so on.")
@click.option(
    "--force",
    is_flag=True,
    help="Resume although settings are others that give the results their meaning, or a part of the file is lost.",
)
@click.option("--durable", is_flag=True, help="Sync every commit to the disk: what is done survives a loss of power.")
@watching_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Check everything, print what would be done, and send nothing.")
@click.pass_context
def run(ctx: click.Context, /, questions: str | None, **given: Any) -> None:
    """Run an agent or a team over QUESTIONS: JSONL, CSV, TSV, Parquet, a Hugging Face path, or - for JSONL on stdin."""
    world = make_verifiers(given, questions)
    fields = read_fields(given["field"], "--field")
    tasks = world.tasks if world else _tasks(questions, given["continue_from"], given["limit"], fields)
    strategy = _strategy(given["strategy"], n=given["rollouts"], wave=given["wave"])
    agent = _player(ctx, given, _sampling(given, strategy))
    # Exact match by default, where there is anything to match.
    default = "exact_match" if any(task.reference for task in tasks) else NONE
    options: dict[str, Any] = {
        "llm": _llms(ctx, given, agent),
        "strategy": strategy,
        "reward": world.reward if world else read_rewards(given["rewards"] or [default], "--reward"),
        "program": world.program
        if world
        else make_external(given) or (given["program"] and load_named(given["program"], "--program")),
        **_hosts(ctx, given["pool"], given["workers"], given["address"]),
        "filters": [FILTERS.make(one, "--filter") for one in given["filters"]],
        **{name: given[name] for name in _AS_GIVEN},
        "labels": {"questions": questions or given["verifiers"]},
    }
    if given["fresh"] and given["force"]:
        raise click.UsageError("--fresh begins anew, and --force resumes: give one of them")
    path, resume = find_run(
        given["out"], given["model"], lambda: RunSpec(agent, tasks, **options).fingerprints, fresh=given["fresh"]
    )
    options |= {"out": path, "resume": "force" if given["force"] else resume}
    anew = given["fresh"] and given["out"] is not None and path.is_file()
    earlier = Path(given["continue_from"] or "")
    if anew and earlier.is_file() and path.samefile(earlier):
        raise click.UsageError(f"--from and --out name one file, {path}: give --fresh another --out")
    if given["dry_run"] or anew:
        planned = plan(agent, tasks, **options | ({"out": None} if anew else {}))
    if given["dry_run"]:
        print_plan(msgspec.structs.replace(planned, out=str(path)) if anew else planned, as_json=given["as_json"])
        return
    if anew and (aside := set_aside(path)) is not None:
        tell(f"--fresh: the run at {path} is now {aside}")
    said, as_json = run_file_status(path, resume=resume, forced=given["force"]), given["as_json"]
    ctx.exit(
        drive(agent, tasks, threshold=given["fail_on_error"], watched=given, as_json=as_json, said=said, **options)
    )


def _player(ctx: click.Context, given: dict[str, Any], sampling: Sampling) -> Agent | Team:
    if given["team"] is not None:
        return make_team(given, _told(ctx, given), sampling)
    if given["role"]:
        raise click.UsageError(f"--role {given['role'][0]} changes a role of a team: name one with --team")
    return Agent(
        tools=[*load_tools(given["tools"], "--tools"), *load_servers(given)],
        dialect=_dialect(given["dialect"]),
        environment=given["environment"] and load_named(given["environment"], "--environment"),
        before_tool=given["before_tool"] and load_named(given["before_tool"], "--before-tool"),
        sampling=sampling,
        **{name: given[name] for name in ("model", "system", "malformed", "on_void_turn", "max_turns")},
    )


def _told(ctx: click.Context, given: dict[str, Any]) -> set[str]:
    """The options that were given, so that their values are no defaults."""
    return {name for name in given if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}


_OF_ALL: Final = ("api_key_env", "timeout", "max_retries", "send_seed")
"""Options that hold for every LLM."""


def _llms(ctx: click.Context, given: dict[str, Any], agent: Agent | Team) -> dict[str, LLM]:
    """The LLMs by name; the one without a name is left out if every role of the team names another one."""
    others = read_llms(given["llms"], {name: given[name] for name in _OF_ALL})
    if others and isinstance(agent, Team) and all(member.agent.llm for member in agent.members.values()):
        for option in sorted(_told(ctx, given) & _RUN_OF_MAIN):
            raise ConfigError(
                f"--{option.replace('_', '-')} is of an LLM without a name, which no role of the team asks; "
                "what is of another one stands in its --llm NAME=URL,OPTION=VALUE"
            )
        return others
    main = LLM(
        *given["base_url"],
        **{name: given[name] for name in (*_OF_ALL, "max_concurrency", "price", "tokens")},
        limits=Limits(requests_per_minute=given["rpm"], tokens_per_minute=given["tpm"]),
    )
    return {MAIN: main, **others}


def _strategy(given: str, **of_chains: int | None) -> Strategy:
    """Make a strategy of its name and options; those of ``chain`` have command-line options of their own."""
    for name, value in of_chains.items():
        if value is None:
            continue
        option = "rollouts" if name == "n" else name
        kind, _, options = given.partition(":")
        if kind != "chain":
            raise ConfigError(
                f"--{option} {value} is for chains; --strategy {given!r} itself says how many rollouts it makes, and "
                "when, which --dry-run shows"
            )
        if any(one.partition("=")[0].strip() == name for one in options.split(",")):
            raise ConfigError(f"--{option} {value} and --strategy {given!r} say the same thing: leave one of them out")
        given += f"{',' if ':' in given else ':'}{name}={value}"
    made = STRATEGIES.make(given, "--strategy")
    if not isinstance(made, Strategy):
        raise ConfigError(f"--strategy {given!r}: {type(made).__name__} has no rollouts() and start(view)")
    return made


def _hosts(ctx: click.Context, pool: str, workers: int, address: str | None) -> dict[str, Any]:
    """The options that say where workers run; a pool is closed when the command ends."""
    if address is not None and pool != "ray":
        raise click.UsageError(f"--address {address} is for --pool ray")
    if pool != "ray":
        return {"workers": 0 if pool == "inline" else workers}
    workers = check_int("--workers", workers, 1, MOST_WORKERS)
    return {"pool": ctx.with_resource(Pool("ray", workers=workers, address=address))}


def _tasks(questions: str | None, earlier: str | None, limit: int | None, fields: dict[str, str]) -> list[Task]:
    """The questions of a file, or all those of the earlier run."""
    if questions is not None:
        return load_tasks(questions, limit=limit, fields=fields)
    if earlier is None:
        raise click.UsageError("name QUESTIONS, or a run to continue with --from RUN")
    if fields:
        raise click.UsageError("--field names columns of QUESTIONS, which are not given: leave it out")
    with RunReader.open(earlier) as reader:
        return reader.tasks()[:limit]


def _sampling(given: dict[str, Any], strategy: Strategy) -> Sampling:
    """Sampling parameters; a strategy that goes by uncertainty asks for the log-probabilities that it needs."""
    chosen = read_sampling(given["set"])
    for name in chosen:
        if (typed := given.get(name)) is not None and typed is not False and typed != ():
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} and --set sampling.{name} are one setting: give one of them")
    given = given | chosen
    top = given["top_logprobs"]
    if top is None and getattr(strategy, "uncertain", None) is not None:
        top = max(16, likeliest_of(strategy))
    return Sampling(
        temperature=given["temperature"],
        top_p=given["top_p"],
        max_tokens=given["max_tokens"],
        stop=given["stop"] or None,
        presence_penalty=given.get("presence_penalty"),
        frequency_penalty=given.get("frequency_penalty"),
        extra=given.get("extra", {}),
        logprobs=True if given["logprobs"] or top is not None else None,
        top_logprobs=top,
    )


def _dialect(name: str) -> Any:
    if name in DIALECTS:
        return name
    if ":" not in name:
        raise ConfigError(f"--dialect {DIALECTS.unknown(name)}; your own is written module:attribute")
    return load_named(name, "--dialect")


_OF_JOB: Final = ("strategy", "reward", "seed", "cache", "filters", "task_budget", "program")
"""Options of a run that its stored job holds by the same names."""

_RESUME_OF_MAIN: Final = ("base_url", "api_key_env", "max_concurrency", "rpm", "tpm", "timeout", "max_retries", "price")


@click.command(cls=FileCommand)
@click.argument("run", type=click.Path())
@click.option("--workers", "-w", type=int, help="Worker processes; 0 stays in this one.  [default: as before]")
@click.option("--base-url", multiple=True, metavar="URL", help="Endpoint, up to /v1; repeatable.  [default: as before]")
@click.option("--llm", "llms", multiple=True, metavar="NAME=[URL][,OPTION=VALUE,...]", help="What is other of an LLM.")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key.  [default: as before]")
@click.option("--max-concurrency", "-c", type=int, help="Requests in flight, in all.  [default: as before]")
@click.option("--rpm", type=float, help="Requests a minute, in all.  [default: as before]")
@click.option("--tpm", type=float, help="Tokens a minute, in all.  [default: as before]")
@click.option("--timeout", type=float, help="Seconds one attempt of a model call may take.  [default: as before]")
@click.option("--max-retries", type=int, help="Retries of a model call.  [default: as before]")
@click.option("--price", type=PRICE, metavar="prompt=P,generated=G[,cached=C]", help="What a million tokens cost.")
@click.option("--budget", type=BUDGET, metavar="WHAT=N,...", help="The most the run may spend.  [default: as before]")
@click.option(
    "--retry",
    multiple=True,
    metavar="broken|cut|empty|ID,...",
    help="Ask tries of finished questions again, by their next draws: those that broke, that the run's budget or time "
    "cut, that gave no answer, or those of a question ID or one of them, ID#2; repeatable. id:ID takes any ID, also "
    "one with commas or called broken. With another --budget: cut.",
)
@click.option("--force", is_flag=True, help="Go on from what is whole where a part of RUN is lost.")
@click.option("--durable/--no-durable", default=None, help="Sync every commit to the disk.  [default: as before]")
@FAIL_ON_ERROR
@watching_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.pass_context
def resume(ctx: click.Context, /, run: str, **given: Any) -> None:
    """Go on with RUN: what is finished is not run again, what is unfinished goes on from its last turn.

    Imports the code that RUN names, from the folders that it names: only for files that you trust.
    """
    path = Path(run).absolute()
    with RunReader.open(path, partial=given["force"]) as reader:
        meta, settings = reader.meta, reader.settings
        retry = Retry.read([part for text in given["retry"] for part in Retry.parts(text)] or None)
        again = None if retry is None else asked_again(retry.choose(reader))
    job, stored = stored_job(path, meta)
    said = run_file_status(path, resume=True, forced=given["force"], again=again)
    options: dict[str, Any] = {
        **{name: getattr(job, name) for name in _OF_JOB},
        **msgspec.structs.asdict(job.stopping),
        "policy_version": job.weights,
        "labels": settings.get("labels"),
        "continue_from": (settings.get("continues") or {}).get("run"),
        **(settings.get("refill") or {}),
        "llm": _endpoints(job, given),
        "budget": given["budget"] or job.budget,
        "workers": stored.workers if given["workers"] is None else given["workers"],
        "durable": stored.durable if given["durable"] is None else given["durable"],
        "out": path,
        "resume": "force" if given["force"] else True,
        "retry": retry and [*retry.words, *retry.ids],
    }
    threshold, as_json = given["fail_on_error"], given["as_json"]
    ctx.exit(drive(job.agent, None, threshold=threshold, watched=given, as_json=as_json, said=said, **options))


def _endpoints(job: Job, given: dict[str, Any]) -> dict[str, LLM]:
    """The LLMs by name, with the settings that are changed now."""
    llms = {name: llm for name, llm in job.llms.items() if isinstance(llm, LLM)}
    main = llms.pop(MAIN, None)
    others = changed_llms(llms, given["llms"])
    if main is not None:
        return {MAIN: _main(main, given), **others}
    for option in _RESUME_OF_MAIN:
        if given[option] not in (None, ()):
            raise ConfigError(
                f"--{option.replace('_', '-')} is of an LLM without a name; the run has {there_is(others)}"
            )
    return others


def _main(llm: LLM, given: dict[str, Any]) -> LLM:
    """The LLM without a name, with the settings that are changed now."""
    same = ("api_key_env", "max_concurrency", "timeout", "max_retries", "price")
    changed = {name: given[name] for name in same if given[name] is not None}
    if given["base_url"]:
        changed["base_urls"] = given["base_url"]
    rates = {"requests_per_minute": given["rpm"], "tokens_per_minute": given["tpm"]}
    told = {name: rate for name, rate in rates.items() if rate is not None}
    if told:
        changed["limits"] = Limits(**(msgspec.structs.asdict(llm.limits) | told))
    return msgspec.structs.replace(llm, **changed)
