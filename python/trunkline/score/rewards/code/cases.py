"""What a program is tested with: the cases of a task, and whether a run of one passed."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.tools.sandbox.sandbox import Ran

__all__ = ["BadTests", "Case", "cases_of", "program_in"]

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
    """One run of a program.

    Attributes:
        source: What is run.
        text: Its standard input.
        expected: What it is to print; None where a word at the end says that it passed.
        word: That word.
    """

    source: str
    text: str
    expected: str | None
    word: bytes = b""

    def passed(self, ran: Ran) -> bool:
        """Whether a run of it is as it should be.

        Args:
            ran: How it went. What is no UTF-8 equals nothing that was expected.
        """
        if not ran.ok:
            return False
        if self.expected is None:
            return ran.out.endswith(b"\n" + self.word)
        return _lines(ran.out.decode("utf-8", "replace")) == _lines(self.expected)


def program_in(answer: str) -> str:
    """Return the program in an answer: its last fenced block of Python, else its last one without a language, else all.

    A block that is not closed goes to the end.

    Args:
        answer: What the model said.
    """
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
    """Return the cases of a task, those of both forms.

    Args:
        program: What is tested.
        metadata: The task's.
        tests: Where inputs and outputs are: a list of ``{"input": ..., "output": ...}``, or lists of both in
            ``{"inputs": [...], "outputs": [...]}``.
        code_tests: Where Python is that runs after the program: text, or a list of texts, each a case.
        entry_point: Where the name is of what the program is to define; ``check`` is called with it, where the tests
            define one.

    Raises:
        BadTests: They are in no form of these.
    """
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
    """Inputs with outputs."""
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
