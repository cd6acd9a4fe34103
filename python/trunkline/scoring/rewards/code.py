"""Code against tests."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._internal.text import printable
from trunkline._internal.validation import check_bool, check_float, check_int, check_text, check_that
from trunkline.errors import ConfigError, InfrastructureError
from trunkline.scoring.rewards.base import OpenedPerCall, Scored
from trunkline.tools.isolation.confinement import WAYS, ResourceLimits, Way
from trunkline.tools.isolation.sandbox import NoSandbox, NoWay, Sandbox, find_way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.tools.isolation.sandbox import ProgramResult
    from trunkline.tree.views import Trajectory


_PYTHON: Final = frozenset({"python", "python3", "py", "py3"})

_DRIVER: Final = """\
import json, os, sys, types
given = json.loads(sys.stdin.read())
module = types.ModuleType("solution")
sys.modules["solution"] = module
scope = vars(module)
exec(compile(given["program"], "solution.py", "exec"), scope)
entry = given["entry"]
if entry and entry not in scope:
    raise NameError(f"the program defines no {entry!r}")
exec(compile(given["tests"], "tests.py", "exec"), scope)
if entry and callable(scope.get("check")):
    scope["check"](scope[entry])
sys.stdout.flush()
os.write(1, ("\\n" + given["word"]).encode())
os._exit(0)
"""


class BadTests(Exception):
    """A task's tests are not what they should be; the message says how."""


class Case(NamedTuple):
    """One run of a program."""

    source: str
    text: str
    expected: str | None
    word: bytes = b""

    def passed(self, ran: ProgramResult) -> bool:
        if not ran.ok:
            return False
        if self.expected is None:
            return ran.out.endswith(b"\n" + self.word)
        return _lines(ran.out.decode("utf-8", "replace")) == _lines(self.expected)


def program_in(answer: str) -> str:
    """The program in an answer: its last fenced block of Python, else without a language, else the whole answer."""
    found: dict[str, str] = {}
    fence, language, indent, block = "", "", 0, list[str]()
    # Other ends of a line that Unicode knows may stand in a string of the program.
    for line in answer.replace("\r\n", "\n").split("\n"):
        word = line.strip()
        if fence:
            if word.startswith(fence) and not word.strip(fence[0]):
                found[language] = "\n".join(block)
                fence = ""
            else:
                block.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
        elif word[:3] in {"```", "~~~"}:
            rest = word.lstrip(word[0])
            fence, block = word[: len(word) - len(rest)], []
            indent = len(line) - len(line.lstrip(" "))
            words = rest.lower().split()
            language = "" if not words else "python" if words[0] in _PYTHON else "other"
    if fence:
        found[language] = "\n".join(block)
    return found.get("python", found.get("", answer))


def cases_of(program: str, metadata: Mapping[str, Any], tests: str, code_tests: str, entry_point: str) -> list[Case]:
    """The cases of a task in both forms; raises BadTests."""
    found = [Case(program, text, expected) for text, expected in _pairs(metadata.get(tests), tests)]
    entry = metadata.get(entry_point)
    if entry is not None and not isinstance(entry, str):
        raise BadTests(f"{entry_point} must be a name")
    code = metadata.get(code_tests)
    listed = [code] if isinstance(code, str) else code or []
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise BadTests(f"{code_tests} must be Python as a string, or a list of strings")
    for one in listed:
        word = secrets.token_hex(16)
        given = {"program": program, "tests": one, "entry": entry or "", "word": word}
        found.append(Case(_DRIVER, json.dumps(given), None, word.encode()))
    return found


def _pairs(given: Any, name: str) -> list[tuple[str, str]]:
    if given is None:
        return []
    if isinstance(given, dict) and {"inputs", "outputs"} <= given.keys():
        inputs, outputs = given["inputs"], given["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise BadTests(f"{name} must have as many outputs as inputs, both in lists")
        given = [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]
    if not isinstance(given, list):
        raise BadTests(f"{name} must be a list of objects with input and output")
    pairs = []
    for place, one in enumerate(given):
        text, expected = (one.get("input", ""), one.get("output")) if isinstance(one, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(expected, str):
            raise BadTests(f"{name}[{place}] must be an object with the strings input and output")
        pairs.append((text, expected))
    return pairs


def _lines(text: str) -> list[str]:
    """Lines without the space at their ends, and without empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


_MIB: Final = 1 << 20
_PROCESSES: Final = 64
_DISK: Final = 64 * _MIB
_LEAST: Final = 64 * _MIB  # bytes of address space without which no interpreter starts
_log = logging.getLogger("trunkline.scoring")


class Code(OpenedPerCall, msgspec.Struct, frozen=True, kw_only=True):
    """1.0 if the program in the answer passes all tests of its task, else 0.0.

    The program is the last fenced block of Python in the answer, or the whole answer. It runs once for each case, in
    a process that sees neither this one's environment nor, where the system allows, its files, its network and its
    processes; ``docs/how-to/rewards.md`` says what holds where. A program that fails, or is killed because it uses too
    much time, memory, output or processes, has not passed. Where nothing can be run safely, or the tests make no
    sense, the rollout stays unscored; so it does without a reason where the task has no tests.

    Args:
        tests: Field of the task's metadata with inputs and outputs: a list of ``{"input": ..., "output": ...}``.
            Outputs are compared line by line, without space at the ends.
        code_tests: Field with Python that runs after the program, such as ``assert`` statements: text, or a list of
            texts, each a case.
        entry_point: Field with the name of what the program must define; tests that define ``check`` have it called
            with that.
        partial: Give the share of cases that passed, rather than all or nothing.
        timeout: Seconds for each case.
        memory: Bytes of address space of each process.
        output: Bytes that a program may print in a case.
        ways: Ways of shutting programs in that may be used; the best one that works here is taken. ``limit`` must be
            asked for: in it a program may read the files of this user and the environment of its other processes, stop
            them, and use the network.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    tests: str = "tests"
    code_tests: str = "code_tests"
    entry_point: str = "entry_point"
    partial: bool = False
    timeout: float = 10.0
    memory: int = 512 * _MIB
    output: int = _MIB
    ways: tuple[str, ...] = WAYS

    def __post_init__(self) -> None:
        for name in ("tests", "code_tests", "entry_point"):
            if not check_text(f"Code: {name}", getattr(self, name)).strip():
                raise ConfigError(f"Code: {name} is empty; name a field of the task's metadata")
        check_bool("Code: partial", self.partial)
        check_float("Code: timeout", self.timeout, 0, 86_400, above=True, unit="seconds")
        check_int("Code: memory", self.memory, _LEAST, 1 << 46)
        check_int("Code: output", self.output, 1, 64 * _MIB)
        given: Any = self.ways
        check_that(isinstance(given, list | tuple), "Code: ways must be a list of words", given)
        if not given:
            raise ConfigError(f"Code: ways is empty; it may be {', '.join(Way)}")
        for way in given:
            check_that(way in set(Way), f"Code: ways may be {', '.join(Way)}", way)
        msgspec.structs.force_setattr(self, "ways", tuple(map(str, given)))

    def opened(self) -> OpenCode:
        """Return what runs tests while a run lasts.

        Raises:
            ConfigError: No program can be run here in any of the ways; the message says why for each.
            InfrastructureError: No process could be started to try them.
        """
        live = OpenCode(self)
        try:
            find_way(live.limits, self.ways)
        except NoWay as problem:
            raise ConfigError(f"Code: no program can be run here: {problem}{_hint(self.ways)}") from None
        except NoSandbox as problem:
            raise InfrastructureError(f"Code: {problem}") from None
        return live


class OpenCode:
    """Runs tests, at most one per processor at once; a time limit counts from the start of the run."""

    timeout = math.inf

    def __init__(self, code: Code) -> None:
        self._code = code
        self.limits = ResourceLimits(code.timeout, code.memory, _PROCESSES, _DISK, code.output)
        self._slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def __call__(self, trajectory: Trajectory) -> Scored | float | None:
        """Run the tests of a trajectory's task on its answer; None if it has none."""
        code, answer = self._code, trajectory.answer
        program = program_in(answer or "")
        try:
            cases = cases_of(program, trajectory.task.metadata, code.tests, code.code_tests, code.entry_point)
        except BadTests as bad:
            return Scored(math.nan, f"the task's tests cannot be used: {printable(str(bad), 200)}")
        if not cases:
            return None
        if not program.strip():
            return 0.0
        async with self._slots:
            try:
                passed = await self._passed(cases, trajectory)
            except NoSandbox as problem:
                return Scored(math.nan, f"the program was not run: {problem}")
        return passed / len(cases) if code.partial else float(passed == len(cases))

    async def close(self) -> None:
        """Nothing is kept between calls."""

    async def _passed(self, cases: list[Case], trajectory: Trajectory) -> int:
        """Count the cases that pass; without partial grades, up to the first that fails."""
        passed = 0
        async with Sandbox(self.limits, self._code.ways) as sandbox:
            for place, case in enumerate(cases):
                ran = await sandbox.run(case.source, case.text)
                if case.passed(ran):
                    passed += 1
                    continue
                if _log.isEnabledFor(logging.DEBUG):
                    why = "printed something else" if ran.ok else ran.how(self.limits)
                    task = printable(trajectory.task.id, 80)
                    _log.debug("task %s, rollout %d: in case %d the program %s", task, trajectory.id, place, why)
                if not self._code.partial:
                    break
        return passed


def _hint(ways: tuple[str, ...]) -> str:
    """The way to allow weaker isolation, for the error."""
    if Way.LIMIT in ways:
        return ""
    listed = ", ".join(f'"{way}"' for way in (*ways, Way.LIMIT))
    return (
        f". Code(ways=({listed})), or --reward code:ways={'/'.join((*ways, Way.LIMIT))}, allows the way limit, too, in "
        "which a program may read this user's files and the environment of its other processes, and use the network"
    )
