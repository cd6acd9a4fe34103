"""The commands demo, init, sim, probe and probe-agent."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from trunkline._internal.child import Child
from trunkline._internal.text import counted, printable, quoted
from trunkline.agent import Agent
from trunkline.cli.options import API_KEY_ENV, BASE_URL, agent_options, run_path
from trunkline.cli.output import put, tell
from trunkline.cli.tables import labelled
from trunkline.cli.targets import make_external
from trunkline.cli.watch import drive, watching_options
from trunkline.errors import ConfigError, InfrastructureError
from trunkline.llm.capabilities import ABILITIES
from trunkline.llm.capabilities import probe as find_out
from trunkline.llm.config import LLM
from trunkline.llm.servers import ADVICE, REPORTS_CACHED, find_facts
from trunkline.runner.run import arun
from trunkline.scoring.rewards import exact_match
from trunkline.sim.model.choices import PRESETS, SIM_VERSION
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from trunkline.llm.capabilities import Capabilities
    from trunkline.llm.servers import ServerFacts
    from trunkline.rollout.external.config import External
    from trunkline.rollout.external.probe import Difference
    from trunkline.types import Task


_SYSTEM = "Answer the question with the tools you have. Put the final answer between <answer> and </answer>."


@click.command()
@click.option("--questions", default=200, show_default=True, type=click.IntRange(1, 500), help="How many questions.")
@click.option("--rollouts", "-r", default=4, show_default=True, help="Tries of each question.")
@click.option("--workers", "-w", default=2, show_default=True, help="Worker processes; 0 stays in this one.")
@click.option("--max-concurrency", "-c", default=128, show_default=True, help="Requests in flight, in all.")
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="default", show_default=True, help="How the model errs."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the world and of the run."
)
@click.option("--latency/--no-latency", default=True, show_default=True, help="Take time as a real server does.")
@click.option("--out", "-o", help="Run file, which must not exist.  [default: runs/TIME-demo.run]")
@watching_options
@click.pass_context
def demo(
    ctx: click.Context,
    /,
    questions: int,
    rollouts: int,
    workers: int,
    max_concurrency: int,
    preset: str,
    seed: int,
    latency: bool,
    out: str | None,
    **watched: Any,
) -> None:
    """Run questions of a made-up world against the simulator: the whole path, with nothing to set up."""
    path = run_path(out, "demo")
    with tempfile.TemporaryDirectory(prefix="trunkline-demo-") as folder, simulator(preset, latency) as url:
        write_world(make_world(seed), Path(folder))
        os.environ[CORPUS_VARIABLE] = str(Path(folder) / "corpus.jsonl")
        tasks = load_tasks(str(Path(folder) / "questions.jsonl"), limit=questions)
        code = drive(
            Agent(model="sim-agent", tools=[search, visit], system=_SYSTEM, max_turns=20),
            tasks,
            llm=LLM(url, max_concurrency=max_concurrency),
            strategy=Chain(rollouts),
            reward=exact_match,
            workers=workers,
            seed=seed,
            out=path,
            labels={"sim": {"version": SIM_VERSION, "preset": preset, "world_seed": seed, "latency": latency}},
            threshold=0.0,
            watched=watched,
        )
    tell(f"next: trunkline show {shlex.quote(str(path))} --task {tasks[0].id}")
    tell("      trunkline run QUESTIONS.jsonl --model NAME --base-url URL --tools mytools:search")
    ctx.exit(code)


_EXAMPLES: Final = Path(__file__).parent.parent / "examples"
"""What ``init`` writes: a folder for each example, and a comment in it that has the command."""

_PREFIX: Final = "# trunkline sim exec "


@click.command()
@click.argument("example", type=click.Choice(["eval", "rl", "team"]))
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
def init(example: str, folder: Path | None) -> None:
    """Write an example into FOLDER, by default one of its name, that runs at once on the simulator.

    eval scores a model with tools on questions, rl makes the arrays of one training step, team has three agents play
    together. No file is replaced.
    """
    target = Path(example) if folder is None else folder
    files = {file.name: file.read_bytes() for file in sorted((_EXAMPLES / example).iterdir()) if file.is_file()}
    there = [target / name for name in files if os.path.lexists(target / name)]
    if there:
        raise ConfigError(f"{printable(str(there[0]))} exists: name another folder, or remove it")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with (target / name).open("xb") as file:
                file.write(data)
            put(printable(str(target / name)))
    except OSError as problem:
        raise ConfigError(f"cannot write {printable(str(target))}: {problem.strerror or problem}") from None
    lines = (line for data in files.values() for line in data.decode().splitlines())
    command = next(line for line in lines if line.startswith(_PREFIX)).removeprefix("# ")
    tell(f"next: cd {shlex.quote(str(target))} && {command}")


_STOP = 10.0
"""Seconds a simulator has to stop."""


@contextmanager
def simulator(preset: str, latency: bool, *options: str) -> Iterator[str]:
    """Start a simulator in a process of its own, which ends with this block or this process; yield its base URL."""
    command = ("-m", "trunkline.sim.server", "--port", "0", "--preset", preset, "--exit-with-parent")
    # Settings for a server of the user's own must not reach this one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_SIM_SERVE_")}
    latencies = ("--latency", "on" if latency else "off")
    server = Child((*command, *latencies, *options), env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().decode().strip()
        if not url:
            raise InfrastructureError(
                f"the simulator did not start and exited with code {server.end(_STOP, ask=False)}"
            )
        yield url
    finally:
        server.end(_STOP)


@click.group()
def sim() -> None:
    """The embedded world: write its files, serve its models, run a command beside them."""


@sim.command()
@click.option(
    "--out", "-o", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for the files."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the world.")
@click.option("--documents", type=click.IntRange(60), default=2000, show_default=True, help="About how many documents.")
@click.option("--questions", type=click.IntRange(1), default=500, show_default=True, help="How many questions.")
def world(out: Path, seed: int, documents: int, questions: int) -> None:
    """Write corpus.jsonl and questions.jsonl of a seeded world."""
    made = make_world(seed, documents, questions)
    write_world(made, out)
    put(printable(f"{out / 'corpus.jsonl'}: {len(made.documents)} documents"))
    put(printable(f"{out / 'questions.jsonl'}: {len(made.questions)} questions"))


@sim.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve the simulated models over an OpenAI-compatible API (see serve --help)."""
    from trunkline.sim.server.__main__ import main

    raise SystemExit(main(arguments, prog="trunkline sim serve"))


@sim.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="default", show_default=True, help="How the model errs."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the world whose corpus the tools search.")
@click.pass_context
def execute(ctx: click.Context, /, command: tuple[str, ...], preset: str, seed: int) -> None:
    """Run COMMAND beside a simulator: OPENAI_BASE_URL and the corpus of trunkline.sim.tools are set for it.

    Exits as COMMAND does.
    """
    with tempfile.TemporaryDirectory(prefix="trunkline-sim-") as folder, simulator(preset, latency=False) as url:
        write_world(make_world(seed), Path(folder))
        env = os.environ | {"OPENAI_BASE_URL": url, CORPUS_VARIABLE: str(Path(folder) / "corpus.jsonl")}
        code = _run_command(command, env)
    ctx.exit(code if code >= 0 else 128 - code)


def _run_command(command: tuple[str, ...], env: dict[str, str]) -> int:
    """Run a command to its end, and return its exit code; signals are passed on to it.

    They are not raised here: raised as ``waitpid`` returns, they would lose the exit code.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(signum: int, _: FrameType | None) -> None:
        if process is None:
            early.append(signum)
        elif signum != signal.SIGINT:  # Ctrl-C reaches the command by itself
            process.send_signal(signum)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: handler for n in numbers if (handler := signal.getsignal(n)) not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, env=env)
        for signum in early:
            process.send_signal(signum)
        return process.wait()
    except OSError as problem:
        raise ConfigError(f"cannot run {printable(command[0])}: {problem.strerror or problem}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_WORDS = {True: "yes", False: "no", None: "did not show"}


@click.command()
@click.argument("url")
@click.option("--model", "-m", required=True, help="Model name, as the endpoint knows it.")
@API_KEY_ENV
@click.option("--timeout", default=60.0, show_default=True, help="Seconds one request may take.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def probe(url: str, model: str, api_key_env: str, timeout: float, as_json: bool) -> None:
    """Ask the server at URL, up to /v1, what it can do, with a dozen or two of small requests."""
    spec = LLM(url, api_key_env=api_key_env, timeout=timeout, max_retries=1)
    found, facts = asyncio.run(_ask(spec, model))
    if as_json:
        put(msgspec.json.encode(msgspec.structs.asdict(found) | msgspec.structs.asdict(facts)).decode())
        return
    rows = [("server", printable(found.site)), ("model", printable(found.model))]
    rows += [("software", facts.software or "not known")]
    rows += [(text, _WORDS[getattr(found, name)]) for name, text in ABILITIES.items()]
    rows += [(text, "not told" if size is None else f"{size:,}") for text, size in _sizes(facts)]
    if found.cached is False and facts.software in REPORTS_CACHED:
        rows.append(("cached tokens", f"start {facts.software} with {REPORTS_CACHED[facts.software]} to see them"))
    put(labelled([*rows, *ADVICE.get(facts.software, ())]))


async def _ask(spec: LLM, model: str) -> tuple[Capabilities, ServerFacts]:
    found = await find_out(spec.open, model)
    llm = spec.open()
    try:
        return found, await find_facts(llm, model)
    finally:
        await llm.close()


def _sizes(facts: ServerFacts) -> list[tuple[str, int | None]]:
    sizes = [("tokens of a prompt and its completion", facts.context)]
    if facts.software == "llama.cpp":
        sizes.append(("slots, which bound the completions of one request", facts.slots))
    return sizes


_SLOW: Final = 0.2
"""Seconds that a reply is delayed by at most, in every other play."""


@click.command(name="probe-agent")
@click.argument("questions", type=click.Path())
@click.option("--model", "-m", required=True, help="Model name, as the endpoint knows it.")
@BASE_URL
@API_KEY_ENV
@agent_options
@click.option("--limit", default=1, show_default=True, help="So many questions.")
@click.option("--plays", default=3, show_default=True, type=click.IntRange(1), help="Plays against each record.")
@click.option("--seed", default=0, show_default=True, help="Seed of the run and of the delays.")
@click.pass_context
def probe_agent(ctx: click.Context, /, questions: str, **given: Any) -> None:
    """Find out whether an agent asks the same when it is started again, as forks and resuming need.

    It is played once with the model, and then against the record of that: each time in another folder, with replies
    delayed by random times. What it does outside of its folder it does each time.
    """
    external = make_external(given | {"program": None, "team": None})
    if external is None or external.command is None:
        raise click.UsageError("name the agent with --agent COMMAND")
    tasks = load_tasks(questions, limit=given["limit"])
    llm = LLM(*given["base_url"], api_key_env=given["api_key_env"])
    found = asyncio.run(_probe(external, tasks, Agent(model=given["model"], max_turns=1_000), llm, given))
    masks = list(dict.fromkeys(one.mask for _, one in found if one.mask))
    for task, one in found:
        put(f"{task}, call {one.call}, {one.place}: '{one.now}' where the record has '{one.was}'")
    for mask in masks:
        put(f"  a mask that covers such: --mask {shlex.quote(mask)}")
    plays = counted(given["plays"], "play")
    put(f"{counted(len(found), 'difference')} in {plays}" if found else f"no difference seen in {plays}")
    ctx.exit(1 if found else 0)


async def _probe(
    external: External, tasks: Sequence[Task], agent: Agent, llm: LLM, given: Mapping[str, Any]
) -> list[tuple[str, Difference]]:
    from random import Random

    from trunkline.gateway.canonical import RequestMasks
    from trunkline.gateway.server import Gateway
    from trunkline.rollout.external.driver import question_of
    from trunkline.rollout.external.probe import play_again
    from trunkline.rollout.external.process import AgentRunner

    command = external.command
    assert command is not None
    run = await arun(
        agent, tasks, llm=llm, program=external, seed=given["seed"], workers=0, progress=None, fail_on_error=True
    )
    runner, gateway, random = AgentRunner(command), Gateway(), Random(given["seed"])
    await gateway.start()
    found: list[tuple[str, Difference]] = []
    try:
        for tree in run:
            for play in range(given["plays"]):
                slow = _SLOW if play % 2 else 0.0
                masks = RequestMasks(external.masks)
                seen = await play_again(runner, gateway, tree, question_of(tree.task), masks, slow, random)
                found += [(quoted(tree.task.id), one) for one in seen]
    finally:
        await gateway.close()
        await runner.aclose()
    # The next plays differ in the same places.
    places = {(task, one.call, one.place): one for task, one in reversed(found)}
    return [(task, one) for (task, _, _), one in reversed(places.items())]
