"""``sys.argv`` crosses to workers and to isolated tools, so that a script may parse its arguments where it begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, size_of_the_last_argument, tasks
from foreign import capital_cities, serving

from trunkline.llm.config import LLM
from trunkline.runner.pool import Pool
from trunkline.runner.run import run

SCRIPT = """
import argparse
import sys

import trunkline as tl

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--suffix", required=True)
given = parser.parse_args()

@tl.tool(isolated=ISOLATED)
def lookup(country: str) -> str:
    '''Look a country up.

    Args:
        country: Its name.
    '''
    return f"capital: {country}{given.suffix}"

def scored(trajectory):
    assert sys.argv[1:] == [given.url, "--suffix", given.suffix]
    return float(trajectory.answer == trajectory.task.reference[0])

if __name__ == "__main__":
    tasks = [tl.Task.ask(f"Capital of {name}?", name + given.suffix, id=name) for name in ("France", "Japan")]
    result = tl.run(tl.Agent(model="m", tools=[lookup]), tasks, llm=tl.LLM(given.url), reward=scored, workers=WORKERS)
    print("REWARDS", [tree.reward for tree in result])
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("isolated", "workers"), [(False, 2), (True, 1), (True, 0)])
def test_a_script_that_parses_its_arguments_on_import_runs(tmp_path: Path, isolated: bool, workers: int):
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.replace("ISOLATED", str(isolated)).replace("WORKERS", str(workers)))
    with serving(capital_cities) as server:
        done = python(str(script), server.url, "--suffix", " the city")
    assert "REWARDS [1.0, 1.0]" in done.stdout, done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("end", ["sys.exit('usage: mine.py')", "given = parser.parse_args(['--wrong'])"])
def test_a_script_that_ends_itself_on_import_is_named_with_the_remedy(tmp_path: Path, end: str):
    script = tmp_path / "mine.py"
    code = SCRIPT.replace("ISOLATED", "False").replace("WORKERS", "1")
    script.write_text(code.replace("\n@tl.tool", f"\nif __name__ != '__main__':\n    {end}\n\n@tl.tool", 1))
    with serving(capital_cities) as server:
        done = python(str(script), server.url, "--suffix", "x")
        assert not server.bodies
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"the script {script} ended itself (SystemExit: " in last
    assert last.endswith('such as parsing arguments, under  if __name__ == "__main__":')


def test_arguments_need_not_be_utf8_and_a_pool_has_those_of_each_run(monkeypatch: pytest.MonkeyPatch):
    with serving(capital_cities) as server, Pool("local", workers=1) as pool:
        for last in ("--first", "\udcff"):
            monkeypatch.setattr(sys, "argv", ["mine", last])
            labelled = [task for task in tasks() if task.id == "France"]
            result = run(agent(), labelled, llm=LLM(server.url), reward=size_of_the_last_argument, pool=pool)
            assert result["France"].answer == CAPITALS["France"]
            assert result["France"].reward == len(last.encode("utf-8", "surrogateescape"))
