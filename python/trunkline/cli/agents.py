"""Options of an agent of another framework, and the command ``probe-agent``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from trunkline._internal.text import counted, quoted
from trunkline.agent import Agent
from trunkline.cli.options import API_KEY_ENV, BASE_URL
from trunkline.cli.output import put
from trunkline.llm.config import LLM
from trunkline.runner.run import arun
from trunkline.store.datasets.loader import load_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.rollout.external.config import External
    from trunkline.rollout.external.probe import Difference
    from trunkline.types import Task

F = TypeVar("F", bound="Callable[..., object]")

_PROCESS: Final = ("folder", "answer", "network", "seconds", "memory")
"""Options of the process, which are called ``--agent-NAME``."""

_OPTIONS: Final = (
    click.option(
        "--agent",
        metavar="COMMAND",
        help="An agent of any framework, started for each try: its model calls come to OPENAI_BASE_URL or "
        "ANTHROPIC_BASE_URL, the question on standard input, or for {question} in COMMAND.",
    ),
    click.option(
        "--effects",
        type=click.Choice(["none", "folder", "external"]),
        help="What the agent's tools change: none or its own folder, so that it may be started again for forks and "
        "after a kill; or external.  [default: external]",
    ),
    click.option(
        "--mask",
        "masks",
        multiple=True,
        metavar="REGEX",
        help="What may differ in the agent's requests when it is started again; repeatable.",
    ),
    click.option(
        "--agent-env", multiple=True, metavar="NAME[=VALUE]", help="A variable that the agent gets; repeatable."
    ),
    click.option("--agent-folder", type=click.Path(), help="A folder that is copied into the agent's own each time."),
    click.option(
        "--agent-answer",
        metavar="stdout|last|file:NAME",
        help="Where the agent's answer is: its output, its last reply, or a file in its folder.  [default: stdout]",
    ),
    click.option(
        "--agent-network",
        type=click.Choice(["all", "none"]),
        help="What the agent reaches: all, or the model endpoint alone.  [default: all]",
    ),
    click.option("--agent-seconds", type=float, help="Seconds that a start may take.  [default: 600]"),
    click.option("--agent-memory", type=int, metavar="BYTES", help="Memory of its processes.  [default: 4 GiB]"),
)

NAMES: Final = (
    "--agent --effects --mask --agent-env --agent-folder --agent-answer --agent-network --agent-seconds --agent-memory"
)


def agent_options(command: F) -> F:
    """Add the options of an agent of another framework."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_external(given: Mapping[str, Any]) -> External | None:
    """Return the agent that a command line describes; None where it names none.

    Raises:
        click.UsageError: An option of the agent stands without it, or beside another program.
        ConfigError: An option has a value that it cannot have.
    """
    process = {name: given[f"agent_{name}"] for name in _PROCESS if given[f"agent_{name}"] is not None}
    if given["agent_env"]:
        process["env"] = given["agent_env"]
    if given["agent"] is None:
        for option, value in (("--effects", given["effects"]), ("--mask", given["masks"])):
            if value:
                raise click.UsageError(f"{option} is of an agent of another framework: name it with --agent")
        if process:
            raise click.UsageError(f"--agent-{next(iter(process))} is of an agent: name it with --agent")
        return None
    for other in ("program", "team"):
        if given[other] is not None:
            raise click.UsageError(f"--agent and --{other}: a try is played by one of them")
    from trunkline.rollout.external.config import External

    return External(agent=given["agent"], effects=given["effects"] or "external", masks=given["masks"], process=process)


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
    import asyncio

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
