"""Options of an agent of another framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline.rollout.external.config import External

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
