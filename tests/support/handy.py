"""A model that uses the tools of the library, and hooks before its calls; importable by workers."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

from foreign import message

import trunkline as tl
from trunkline.tools.environments.sandbox import SandboxWorkspace

BEGIN = "words = globals().get('words', [])"


def handy(body: dict) -> dict:
    """Appends a drawn word a turn to a list or a file, and sometimes works something out; answers after three turns."""
    choices = []
    turns = sum(each["role"] == "assistant" for each in body["messages"])
    for index in range(body.get("n") or 1):
        draws = random.Random(body["seed"] + index)
        word = draws.choice("abcde")
        calls = [("python", {"code": f"{BEGIN}; words.append({word!r}); words, random.random() < 2"})]
        if turns == 0:
            calls = [("python", {"code": f"import random; {BEGIN}; words.append({word!r}); random.random(), words"})]
        elif draws.random() < 0.3:
            calls = [("shell", {"command": f"echo {word} >> notes; cat notes"}), ("read_file", {"path": "../notes"})]
        elif draws.random() < 0.3:
            calls += [("write_file", {"path": "notes", "content": word}), ("calculator", {"expression": "2 ** 0.5"})]
        said = message(None, [(name, json.dumps(given)) for name, given in calls])
        if turns >= 3:
            said = message(f"<answer>{draws.choice(['yes', 'no'])}</answer>")
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


def decided(call: tl.tools.ToolRequest) -> tl.tools.ToolRequest | str:
    """Refuses what has the word e, and makes a d of a c."""
    text = json.dumps(call.arguments)
    if "'e'" in text or "echo e " in text:
        return f"no e in task {call.task.id}"
    return tl.tools.ToolRequest(
        name=call.name,
        arguments={name: given.replace("'c'", "'d'") for name, given in call.arguments.items()},
        task=call.task,
        call=call.call,
    )


async def decided_or_die(call: tl.tools.ToolRequest) -> tl.tools.ToolRequest | str:
    """Decides the same; the third call of a process kills it once."""
    marker = Path(os.environ["DIED_ONCE"])
    marker.write_bytes((marker.read_bytes() if marker.exists() else b"") + b".")
    if marker.stat().st_size == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return decided(call)


async def count_words(trajectory: tl.Trajectory, environment: SandboxWorkspace) -> float:
    """Reward: how many words the interpreter has at the end."""
    return float(await environment.run_python("len(globals().get('words', []))"))
