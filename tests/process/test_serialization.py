"""User code on its way to a worker: from a script, a notebook kernel, ``python -c`` and the REPL."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import msgspec
import nbformat
import pytest
from atlas import agent, lookup, tasks
from foreign import capital_cities, serving
from handy import decided
from nbclient import NotebookClient

import trunkline._internal.serialization as crossing
from trunkline._internal.serialization import load, pack
from trunkline.errors import CrossingError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.protocol.job import Job, pack_job, settings, unpack_job
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.strategies.chain import Chain
from trunkline.strategies.mcts import MCTS


class Odd(msgspec.Struct, frozen=True):
    sizes: tuple[int, ...] = (1, 2)


def test_importable_things_cross_by_name():
    for thing in (exact_match, lookup, Chain):
        packed = pack(thing, "it")
        assert packed.module
        assert packed.pickled is None
        assert load(packed) is thing


def test_structs_cross_as_fields():
    packed = pack(Chain(7), "strategy")
    assert packed.pickled is None
    assert load(packed) == Chain(7)
    assert load(pack(Odd((3,)), "odd")) == Odd((3,))


def test_functions_in_the_fields_of_a_struct_cross_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    search = MCTS(3, value=exact_match)
    packed = pack(search, "strategy MCTS")
    assert packed.pickled is None
    assert load(packed) == search
    with pytest.raises(CrossingError, match=r"strategy MCTS.*trunkline\[notebook\]"):
        pack(MCTS(3, value=lambda rollout: 0.5), "strategy MCTS")


def test_closures_in_the_fields_of_a_struct_cross_by_value():
    half = 0.5
    search = load(pack(MCTS(3, value=lambda rollout: half), "strategy MCTS"))
    assert (search.simulations, search.value(None)) == (3, 0.5)


def test_closures_cross_by_value():
    base = 40
    packed = pack(lambda x: base + x, "adder")
    assert packed.pickled is not None
    assert load(packed)(2) == 42


def test_a_struct_whose_class_no_name_leads_to_is_refused_before_it_loses_its_fields():
    class Local(msgspec.Struct):
        size: int = 1

    class Inner(Odd):
        pass

    for value in (Local(2), type("Below", (Local,), {})(2)):
        with pytest.raises(CrossingError, match=r"strategy Local: its class has settings.*or run with workers=0"):
            pack(value, "strategy Local")
    assert load(pack(Inner((5,)), "inner")) == Inner((5,))


def test_without_the_extra_the_object_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(CrossingError, match=r"reward 'mine'.*trunkline\[notebook\].*workers=0"):
        pack(lambda t: 1.0, "reward 'mine'")


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(CrossingError, match=r"tool 'guard'.*cannot be sent"):
        pack(lambda: (lock, 1), "tool 'guard'")


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(CrossingError, match=r"tool 'x'.*no_such_module"):
        load(crossing.SerializedObject(what="tool 'x'", module="no_such_module", qualname="x"))
    with pytest.raises(CrossingError, match="no 'gone'"):
        load(crossing.SerializedObject(what="tool 'x'", module="json", qualname="gone"))


BODY = """
import trunkline as tl

CAPITALS = {"France": "Paris", "Brazil": "Brasilia"}

@tl.tool
def lookup(country: str) -> str:
    '''Look a country up.

    Args:
        country: Its name.
    '''
    return f"capital: {CAPITALS[country]}"

def scored(trajectory):
    return float(trajectory.answer == trajectory.task.reference[0])

def go(url):
    tasks = [tl.Task.ask(f"Capital of {c}?", a, id=c) for c, a in CAPITALS.items()]
    result = tl.run(tl.Agent(model="m", tools=[lookup]), tasks, llm=tl.LLM(url), reward=scored, workers=2)
    print("REWARDS", [tree.reward for tree in result])
"""


def python(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], input=stdin, capture_output=True, text=True, timeout=60)


def test_from_a_script(tmp_path):
    script = tmp_path / "mine.py"
    with serving(capital_cities) as server:
        script.write_text(BODY + f'\nif __name__ == "__main__":\n    go({server.url!r})\n')
        done = python(str(script))
    assert "REWARDS [1.0, 1.0]" in done.stdout, done.stderr


def test_a_script_without_a_main_guard_is_one_clear_error(tmp_path):
    script = tmp_path / "unguarded.py"
    with serving(capital_cities) as server:
        script.write_text(BODY + f"\ngo({server.url!r})\n")
        done = python(str(script))
        assert not server.bodies
    assert done.returncode != 0
    assert 'if __name__ == "__main__":' in done.stderr
    assert "unguarded.py" in done.stderr


def test_from_dash_c():
    with serving(capital_cities) as server:
        done = python("-c", BODY + f"\ngo({server.url!r})\n")
    assert "REWARDS [1.0, 1.0]" in done.stdout, done.stderr


def test_from_the_repl():
    with serving(capital_cities) as server:
        # The interactive loop ends a block at an empty line, so blank lines inside blocks have to go.
        lines = [line for line in textwrap.dedent(BODY).splitlines() if line.strip()]
        typed, previous = [], ""
        for line in lines:
            if previous.startswith((" ", "\t")) and not line.startswith((" ", "\t")):
                typed.append("")
            typed.append(line)
            previous = line
        done = python("-i", "-q", stdin="\n".join([*typed, "", f"go({server.url!r})", ""]))
    assert "REWARDS [1.0, 1.0]" in done.stdout, done.stderr


@pytest.mark.filterwarnings("ignore")
def test_from_a_notebook_kernel():
    with serving(capital_cities) as server:
        cells = [nbformat.v4.new_code_cell(BODY), nbformat.v4.new_code_cell(f"go({server.url!r})")]
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    printed = "".join(out.get("text", "") for out in notebook.cells[1].outputs)
    assert "REWARDS [1.0, 1.0]" in printed


def test_a_live_client_cannot_be_told_to_use_processes():
    class Mine:
        async def complete(self, request):
            raise AssertionError

        async def close(self):
            pass

    with pytest.raises(ValueError, match=r"workers=2.*Mine.*stays in its process"):
        run(agent(), tasks(), llm=Mine(), workers=2)


def test_every_field_of_an_agent_reaches_the_worker_and_the_run_file():
    """A field added to Agent later must not be dropped on the way."""
    sent = agent(
        system="s",
        name="n",
        max_tool_calls=7,
        sampling=Sampling(temperature=0.5, stop=("x",), extra={"top_k": 3}),
        before_tool=decided,
    )
    job = Job(agent=sent, strategy=Chain(3), reward=exact_match, llm=LLM("http://127.0.0.1:9/v1"), seed=4)
    there = unpack_job(pack_job(job))
    assert list(there.agent.tools) == list(sent.tools)
    assert there.agent.before_tool is sent.before_tool
    alike = {"tools": (), "before_tool": None}
    assert msgspec.structs.replace(there.agent, **alike) == msgspec.structs.replace(sent, **alike)
    assert (there.strategy, there.reward, there.llms, there.seed) == (Chain(3), exact_match, job.llms, 4)
    assert set(settings(job)["agent"]) == {field.encode_name for field in msgspec.structs.fields(sent)}
