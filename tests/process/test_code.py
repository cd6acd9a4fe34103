from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from foreign import message, serving
from hypothesis import given
from hypothesis import strategies as st
from walled import refuse_all

import trunkline as tl
from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError, InfrastructureError
from trunkline.scoring.rewards import code as cases
from trunkline.scoring.rewards.base import Scored
from trunkline.scoring.rewards.code import Case, Code, program_in
from trunkline.tools.isolation import sandbox
from trunkline.tools.isolation.confinement import WAYS, ResourceLimits
from trunkline.tools.isolation.sandbox import NoWay, ProgramResult, find_way
from trunkline.tree.views import Trajectory, Tree

DOUBLE = {"tests": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in (1, 2, 5)]}
RIGHT = "print(2 * int(input()))"
SQUARE = {
    "code_tests": "def check(f):\n    assert f(3) == 9\n    assert [f(n) for n in range(3)] == [0, 1, 4]\n",
    "entry_point": "square",
}


@functools.cache
def here() -> tuple[str, ...]:
    """Ways for the tests: as by default, or what there is on a system without."""
    try:
        find_way(ResourceLimits(20.0, 512 << 20, 64, 1 << 20, 1 << 20), WAYS)
    except NoWay:
        return (*WAYS, "limit")
    return WAYS


def code(**options: Any) -> Code:
    return Code(ways=here(), **options)


def ended(answer: str | None, metadata: dict[str, Any]) -> Trajectory:
    messages = [{"role": "user", "content": "Write it."}]
    tree = Tree(tl.Task(id="t", messages=messages, metadata=metadata))
    point = tree.core.append(0, 1, json.dumps(messages[0]).encode())
    tree.core.close(tree.core.open(point, [0, 0]), "answer", answer)
    return tree.rollouts[0]


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("print(1)", "print(1)"),
        ("So:\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ("```py\nprint(1)\n```\nbetter:\n```python3\nprint(2)\nprint(3)\n```", "print(2)\nprint(3)"),
        ("```python\nprint(1)\n```\nwhich prints\n```\n1\n```", "print(1)"),
        ("```\nprint(1)\n```\nwhich prints\n```text\n1\n```", "print(1)"),
        ("~~~~ python title=x\nprint('''\n```\n''')\n~~~~", "print('''\n```\n''')"),
        ("```python\nprint(1)", "print(1)"),
        ("1. So:\n   ```python\n   if 1:\n       print(1)\n  print(2)\n   ```", "if 1:\n    print(1)\nprint(2)"),
        ("```python\r\nprint('\u2028\x0c')\r\nx\r\n```", "print('\u2028\x0c')\nx"),
        ("```bash\nls\n```", "```bash\nls\n```"),
        ("", ""),
    ],
)
def test_where_the_program_is(answer: str, program: str) -> None:
    assert program_in(answer) == program


@given(
    before=st.text(st.sampled_from("ab\n `~"), max_size=40), lines=st.lists(st.text("xy \t", max_size=5), max_size=5)
)
def test_the_last_block_is_found_after_anything_that_opens_none(before: str, lines: list[str]) -> None:
    before = "\n".join(line for line in before.splitlines() if line.strip()[:3] not in {"```", "~~~"})
    assert program_in(f"{before}\n```python\n" + "".join(f"{line}\n" for line in lines) + "```\nend") == "\n".join(
        lines
    )


@pytest.mark.parametrize(
    ("out", "expected", "passed"),
    [
        ("1 2\n", "1 2", True),
        ("1 2  \r\n3\n\n", "1 2\n3\n", True),
        ("1\n\n2", "1\n2", False),
        (" 1", "1", False),
        ("", "", True),
        ("\n", "", True),
        ("1", "", False),
    ],
)
def test_how_outputs_are_compared(out: str, expected: str, passed: bool) -> None:
    ran = ProgramResult("exit", 0, out.encode(), b"", False)
    assert Case("", "", expected).passed(ran) is passed
    assert not Case("", "", expected).passed(ran._replace(status=256))
    assert not Case("", "", expected).passed(ran._replace(ended="time"))


@pytest.mark.parametrize(
    ("answer", "metadata", "value"),
    [
        (RIGHT, DOUBLE, 1.0),
        (f"Here:\n```python\n{RIGHT}\n```", DOUBLE, 1.0),
        ("print(2)", DOUBLE, 0.0),
        ("print(2 * int(input())); raise SystemExit(1)", DOUBLE, 0.0),
        ("I cannot.", DOUBLE, 0.0),
        (None, DOUBLE, 0.0),
        ("```python\n```", DOUBLE, 0.0),
        (RIGHT, {"tests": {"inputs": ["1", "2"], "outputs": ["2", "4"]}}, 1.0),
        (RIGHT, {}, None),
        (RIGHT, {"tests": []}, None),
        ("def square(n): return n * n", SQUARE, 1.0),
        ("def square(n): return n + n", SQUARE, 0.0),
        ("def cube(n): return n ** 3", SQUARE, 0.0),
        ("def square(n): return n * n\nif __name__ == '__main__': print(square(int(input())))", SQUARE, 1.0),
        ("import sys; sys.exit(0)", SQUARE, 0.0),
        ("import os; os._exit(0)", SQUARE, 0.0),
        ("def square(n): return n * n", {"code_tests": ["assert square(2) == 4", "assert square(3) == 9"]}, 1.0),
        ("x = 3", {"code_tests": "assert x == 3", "tests": [{"output": ""}]}, 1.0),
    ],
)
async def test_programs_pass_or_not(answer: str | None, metadata: dict[str, Any], value: float | None) -> None:
    assert await code()(ended(answer, metadata)) == value


@pytest.mark.parametrize(
    ("answer", "metadata", "value"),
    [
        (RIGHT, DOUBLE, 1.0),
        ("print(2)", DOUBLE, 1 / 3),
        ("n = int(input())\nif n == 2: raise SystemExit(1)\nprint(2 * n)", DOUBLE, 2 / 3),
        ("def square(n): return 4", {"code_tests": ["assert square(2) == 4", "assert square(3) == 9"]}, 0.5),
    ],
)
async def test_shares(answer: str, metadata: dict[str, Any], value: float) -> None:
    assert await code(partial=True)(ended(answer, metadata)) == value
    assert await code()(ended(answer, metadata)) == float(value == 1)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("while True: pass", "took longer than 0.5 s"),
        ("x = bytearray(10 ** 10)", "used more than 537 MB"),
        ("while True: print('x' * 9999)", "printed more than 1,048,576 bytes"),
        ("1 / 0", "ended with exit code 1: ZeroDivisionError: division by zero"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "printed something else"),
        ("print('\\x1b[31m')", "printed something else"),
        ("raise ValueError('\\x1b[31m')", "ended with exit code 1: ValueError: \\x1b[31m"),
        ("import os\nwhile True: os.fork()", "started too many processes"),
    ],
)
async def test_a_failing_program_scores_zero_and_the_log_says_why(
    program: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trunkline.scoring")
    made = code(timeout=0.5 if "while True: pass" in program else 10.0)
    assert await made(ended(program, {"tests": [{"input": "", "output": "x"}]})) == 0.0
    said = [record.getMessage() for record in caplog.records if record.name == "trunkline.scoring"]
    assert said == [f"task t, rollout 0: in case 0 the program {why}"]


async def test_output_that_is_no_utf_8_equals_nothing_else() -> None:
    program = "import sys; sys.stdout.buffer.write(b'\\xff')"
    assert await code()(ended(program, {"tests": [{"output": "\xff"}]})) == 0.0
    assert await code()(ended("print('\\xff\\U0001f600')", {"tests": [{"output": "\xff\U0001f600"}]})) == 1.0


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"tests": "assert 1"}, "tests must be a list of objects with input and output"),
        ({"tests": [{"input": "1"}]}, "tests[0] must be an object with the strings input and output"),
        ({"tests": [{"input": "1", "output": "2"}, 3]}, "tests[1] must be an object"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "tests must have as many outputs as inputs"),
        ({"code_tests": 3}, "code_tests must be Python as a string"),
        ({"code_tests": ["x", 3]}, "code_tests must be Python as a string"),
        ({"code_tests": "x", "entry_point": 3}, "entry_point must be a name"),
    ],
)
async def test_tests_that_make_no_sense_leave_the_rollout_unscored(metadata: dict[str, Any], why: str) -> None:
    scored = await code()(ended(RIGHT, metadata))
    assert isinstance(scored, Scored)
    assert math.isnan(scored.value)
    assert f"the task's tests cannot be used: {why}" in str(scored.problem)


async def test_other_fields_of_the_metadata() -> None:
    made = code(tests="cases", code_tests="asserts", entry_point="name")
    assert await made(ended("print(1)", {"cases": [{"output": "1"}], "tests": "not read"})) == 1.0
    asked = {"asserts": "def check(f): assert f() == 1", "name": "one"}
    assert await made(ended("def one(): return 1", asked)) == 1.0
    assert await made(ended("one = lambda: 2", asked)) == 0.0


async def test_without_a_sandbox_nothing_is_run_and_nothing_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    here()
    assert (await code()(ended(RIGHT, DOUBLE))) == 1.0
    monkeypatch.setattr(sandbox, "_BOOT", "raise SystemExit")
    scored = await code()(ended(RIGHT, DOUBLE))
    assert isinstance(scored, Scored)
    assert math.isnan(scored.value)
    assert scored.problem == "the program was not run: the process that runs programs ended"


async def test_many_at_once() -> None:
    live = code().opened()
    asked = [live(ended(f"print({number} * int(input()))", DOUBLE)) for number in range(6)]
    assert await asyncio.gather(*asked) == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    await live.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tests": ""}, "Code: tests is empty"),
        ({"partial": 1}, "partial must be true or false"),
        ({"timeout": 0}, "Code: timeout"),
        ({"timeout": math.inf}, "Code: timeout"),
        ({"memory": 1000}, "Code: memory"),
        ({"output": 0}, "Code: output"),
        ({"ways": "root"}, "ways must be a list"),
        ({"ways": ()}, "ways is empty; it may be root, user, uid, limit"),
        ({"ways": ("docker",)}, "ways may be root, user, uid, limit"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Code(**options)


def test_it_crosses_to_workers() -> None:
    made = Code(partial=True, timeout=3.0, ways=("root", "user"))
    assert load(pack(made, "reward")) == made
    assert tl.rewards.Code is Code


def test_the_word_of_a_case_is_its_own() -> None:
    found = cases.cases_of("x", {"code_tests": ["a", "b"]}, "tests", "code_tests", "entry_point")
    assert len({case.word for case in found}) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_in_a_run(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    asked = [{"role": "user", "content": "Write a program."}]
    tasks = [
        tl.Task(id=name, messages=asked, metadata={"tests": [{"input": "", "output": output}]})
        for name, output in (("right", "7"), ("wrong", "8"))
    ]
    with serving(lambda _body: message("```python\nprint(3 + 4)\n```")) as server:
        run = tl.run(tl.Agent(model="m"), tasks, llm=tl.LLM(server.url), reward=code(), workers=workers, seed=1)
    assert {tree.task.id: tree.rollouts[0].reward for tree in run} == {"right": 1.0, "wrong": 0.0}
    assert not caplog.records


SEVEN = {"tests": [{"input": "", "output": "7"}]}
REFUSED = re.escape('Code(ways=("root", "user", "uid", "limit")), or --reward code:ways=root/user/uid/limit')


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_is_refused_before_it_asks_where_no_way_works(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_all(monkeypatch)
    reward = Code() if alone else tl.rewards.weighted({"code": Code(), "exact": tl.exact_match})
    asked: list[Any] = []
    tasks = [tl.Task(id=name, messages=[{"role": "user", "content": "?"}], metadata=SEVEN) for name in "abc"]
    with serving(lambda body: asked.append(body) or message("print(7)")) as server:
        with pytest.raises(ConfigError, match=f"^Code: no program can be run here: .*user: .*{REFUSED}"):
            tl.run(tl.Agent(model="m"), tasks, llm=tl.LLM(server.url), reward=reward, out=tmp_path / "run", workers=0)
        assert asked == []
        assert list(tmp_path.iterdir()) == []
        run = tl.run(tl.Agent(model="m"), tasks, llm=tl.LLM(server.url), reward=None, out=tmp_path / "run", workers=0)
    assert len(run) == 3
    before = (tmp_path / "run").read_bytes()
    for out in (None, tmp_path / "copy"):
        with pytest.raises(ConfigError, match=f"no program can be run here: .*{REFUSED}"):
            tl.rescore(tmp_path / "run", reward, out=out)
    assert (tmp_path / "run").read_bytes() == before, "the file is not of a reward that never ran"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


async def test_what_may_be_tried_is_said_and_the_weakest_way_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_all(monkeypatch)
    assert "limit" not in Code().ways
    with pytest.raises(ConfigError, match=r"here: user: .*ways=\(\"user\", \"limit\"\)"):
        Code(ways=("user",)).opened()
    if os.geteuid():
        assert await Code(ways=("user", "limit"))(ended("print(7)", SEVEN)) == 1.0
    else:
        with pytest.raises(ConfigError, match=r"limit: the kernel keeps no limit of processes for this user$"):
            Code(ways=("limit",)).opened()
    monkeypatch.setattr(sandbox, "_BOOT", "raise SystemExit")
    with pytest.raises(InfrastructureError, match="Code: the process that runs programs ended"):
        Code().opened()
