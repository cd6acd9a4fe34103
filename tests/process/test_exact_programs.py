"""Programs and teams with token ids over real sockets, in worker processes, also in some that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from panels import Panel
from resuming import digests, environment, kill, wait_for
from toy_model import ToyServer, known

from programs import TELLERS, exact_mortal
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.runner.run import run
from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task

TASKS = [Task.ask(f"what is {number}?", id=f"q{number}") for number in range(3)]


def grow(server: ToyServer, who: Any, out: Path, workers: int = 0, tasks: list[Task] = TASKS, **given: Any) -> Any:
    """Digests of a run, each of whose turns is what the server was given and said."""
    llm = LLM(server.url, tokens=server.tokens, max_concurrency=4)
    llms = {"": llm, "judge": llm} if who is PANEL else llm
    result = run(who, tasks, llm=llms, strategy=Chain(2), seed=5, workers=workers, out=out, **given)
    trees: list[Tree] = sorted(result, key=lambda tree: tree.task.id)
    for tree in trees:
        tree.core.check()
        assert {rollout.termination for rollout in tree.rollouts} == {"answer"}
        assert tree.tokens.exact
        assert set(known(tree.core)) <= set(server.calls)
    assert sum(tree.usage.forked for tree in trees) > 0
    with RunReader.open(out) as reader:
        assert reader.check() == []
    return [tree.digest() for tree in trees]


PANEL = Panel(model="toy")


@pytest.fixture
def server(tmp_path: Path) -> ToyServer:
    return ToyServer(tmp_path)


def test_a_team_of_several_llms_has_its_ids_in_every_pool(server: ToyServer, tmp_path: Path):
    with server.serving():
        digests = [grow(server, PANEL, tmp_path / str(workers), workers) for workers in (0, 2)]
        assert digests[0] == digests[1]
        assert set(server.paths) == {"/v1/completions"}
        llm = LLM(server.url, tokens=server.tokens)
        with pytest.raises(ConfigError, match="some keep token ids, and one without a name keeps none"):
            run(PANEL, TASKS, llm={"": LLM(server.url), "judge": llm}, workers=0)


def test_workers_that_are_killed_change_no_ids(server: ToyServer, tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    mortal = [
        msgspec.structs.replace(task, metadata={str(number): f"{marks}/{task.id}"}) for number, task in enumerate(TASKS)
    ]
    with server.serving():
        given = {"program": exact_mortal}
        whole = grow(server, TELLERS[0], tmp_path / "whole", **given)
        killed = grow(server, TELLERS[0], tmp_path / "killed", 2, mortal, **given)
    assert len(list(marks.iterdir())) == len(TASKS)
    assert killed == whole


SCRIPT = """
import sys
from programs import TELLERS, exact_mortal
from test_exact_programs import TASKS
from trunkline.llm.config import LLM
from trunkline.llm.token_ids.base import TokenMode
from trunkline.runner.run import run
from trunkline.strategies.chain import Chain

if __name__ == "__main__":
    url, out, folder, workers = sys.argv[1:]
    llm = LLM(url, tokens=TokenMode(api="completions", tokenizer=folder), max_concurrency=4)
    run(TELLERS[0], TASKS, llm=llm, strategy=Chain(2), seed=5, workers=int(workers), out=out, resume=True,
        program=exact_mortal)
"""


def start(server: ToyServer, out: Path, workers: int) -> subprocess.Popen[str]:
    """Begin the run, or go on with it, in a process of its own."""
    assert server.tokens.tokenizer is not None
    command = [sys.executable, "-c", SCRIPT, server.url, str(out), server.tokens.tokenizer, str(workers)]
    env = environment()
    env["PYTHONPATH"] = f"{Path(__file__).parent}:{env['PYTHONPATH']}"
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def test_a_controller_that_is_killed_again_and_again_changes_no_ids(server: ToyServer, tmp_path: Path):
    out = tmp_path / "killed"
    with server.serving():
        grow(server, TELLERS[0], tmp_path / "whole", program=exact_mortal)
        usual = len(server.calls)
        for _ in range(3):
            due = len(server.calls) + 9
            process = start(server, out, 1)
            wait_for(lambda due=due, process=process: len(server.calls) >= due or process.poll() is not None)
            kill(process)
            wait_for(lambda: not out.exists() or not is_written(out))
        process = start(server, out, 1)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    with RunReader.open(out) as reader, RunReader.open(tmp_path / "whole") as whole:
        assert reader.check() == []
        for number in reader.task_ids():
            assert sorted(known(reader.tree(number).core)) == sorted(known(whole.tree(number).core))
            assert set(known(reader.tree(number).core)) <= set(server.calls[:usual])
    assert digests(out) == digests(tmp_path / "whole")
