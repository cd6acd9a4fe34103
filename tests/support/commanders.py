"""A model that runs commands in a workspace, and a tool that kills its worker once; importable by workers."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

from foreign import message

from trunkline.tools.environments.workspace import Workspace
from trunkline.tools.tool import tool
from trunkline.tree.views import Trajectory


def commander(body: dict) -> dict:
    """Appends one drawn word a turn to a file, by a command or by the tools for files; answers after two turns."""
    choices = []
    turns = sum(each["role"] == "assistant" for each in body["messages"])
    for index in range(body.get("n") or 1):
        draws = random.Random(body["seed"] + index)
        word = draws.choice("abc")
        if turns >= 2:
            said = message(f"<answer>{draws.choice(['yes', 'no'])}</answer>")
        elif draws.random() < 0.3:
            said = message(None, [("write_file", json.dumps({"path": "sub/x", "content": word}))])
        else:
            command = f"echo {word} >> notes; cat notes sub/x; exit {draws.choice([0, 3])}"
            said = message(None, [("run", json.dumps({"command": command}))])
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


async def count_notes(trajectory: Trajectory, environment: Workspace) -> float:
    """Reward: how many notes there are at the end."""
    return float((await environment.run("cat notes sub/x 2> /dev/null | wc -l")).split()[0])


@tool(name="run")
async def run_or_die(command: str, workspace: Workspace) -> str:
    """Run a command; the first call of all kills its process.

    Args:
        command: The command.
    """
    said = await workspace.run(command)
    marker = Path(os.environ["DIED_ONCE"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return said
