"""Pages of the documentation as programs: the blocks of code of a page, and one bash session that runs them in order.

CONTRIBUTING.md has the marks that a page may put before a block. Needs the standard library alone: ``tests/pages``
runs pages in an environment that has nothing but Trunkline.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = {"sh", "python", "text", "json", "jsonl", "toml", "mermaid", "csv", "yaml"}
RUN = {"sh", "python"}
MARKS = {"not run", "needs", "exits", "output", "continues"}
_FEW = 6
"""Letters below which a line of output is compared with its numbers."""
PORT = "8000"
"""The port of the simulator in pages."""

_FENCE = re.compile(r"```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?")
_MARK = re.compile(r"<!-- (?P<name>not run|needs|exits|output|continues)(?:: (?P<value>.+))? -->")
_MADE = "<!-- Made by "
_SERVED = re.compile(r"--port (\d+)[^\n]*&\s*(?:#.*)?$", re.MULTILINE)
_INSTALL = re.compile(r"^pip install .*$", re.MULTILINE)
_PRESENT = """
import importlib.util, sys

def there(name):
    if name != "sandbox":
        return importlib.util.find_spec(name) is not None
    import trunkline
    try:
        trunkline.environments.Sandbox()
    except trunkline.errors.ConfigError:
        return False
    return True

print(*filter(there, sys.argv[1:]))
"""
"""Says which of some modules are there; ``sandbox`` stands for a machine that can confine code."""

_WAIT = "for _ in $(seq 600); do (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; sleep 0.1; done"


@dataclass(frozen=True)
class Block:
    """A fenced block, with the marks of the comment lines right before it."""

    line: int
    language: str
    title: str
    text: str
    marks: dict[str, str]

    @property
    def runs(self) -> bool:
        """Whether it is a step of its page: a script, a command, or a file that is written."""
        return "not run" not in self.marks and (bool(self.title) or self.language in RUN)


@dataclass(frozen=True)
class Outcome:
    """How a page's session ended: exit code, everything printed, and the blocks that a missing module kept back."""

    code: int
    output: str
    kept_back: list[str]
    left: frozenset[int] = frozenset()
    """The lines of these blocks."""


def pages() -> list[Path]:
    """README and every page of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """A page's name as an id of tests: ``how-to/tools`` is how_to_tools."""
    path = page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")
    return re.sub(r"\W", "_", path)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page.

    Raises:
        ValueError: A fence that is indented, of another language, or not closed; a mark that stands alone.
    """
    found, marks = [], dict[str, str]()
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if line.startswith("```"):
            fence = _FENCE.fullmatch(line)
            if fence is None or fence["language"] not in LANGUAGES:
                raise ValueError(f"line {number}: {line!r} is no fence of {', '.join(sorted(LANGUAGES))}")
            body = []
            for _, inner in lines:
                if inner == "```":
                    break
                body.append(inner + "\n")
            else:
                raise ValueError(f"line {number}: this block is not closed")
            found.append(Block(number, fence["language"], fence["title"] or "", "".join(body), marks))
            if wrong := [mark for mark in marks if (fence["language"] in RUN) == (mark == "output")]:
                raise ValueError(f"line {number}: {', '.join(wrong)} says nothing of a block of {fence['language']}")
            marks = {}
        elif mark := _MARK.fullmatch(line):
            marks = {**marks, mark["name"]: mark["value"] or ""}
        elif marks or line.lstrip().startswith("```") or (line.startswith("<!--") and not line.startswith(_MADE)):
            raise ValueError(f"line {number}: a block begins at the first column, right after its marks: {line!r}")
    return found


def run(page: Path, folder: Path, *, port: int | None = None, python: str = sys.executable) -> Outcome:
    """Run a page in an empty folder, with the programs beside ``python``.

    Args:
        page: A Markdown file.
        folder: Where it runs.
        port: What takes the place of port 8000, so that pages run side by side; ``pip install`` is left out then, as
            the environment is shared. Without it the page runs as printed.
        python: The interpreter of the environment.
    """
    steps = [block for block in blocks(page.read_text("utf-8")) if block.runs]
    if port is None:
        _install(steps, python)
    wanted = {module for block in steps for module in _modules(block)}
    present = set(subprocess.check_output([python, "-c", _PRESENT, *sorted(wanted)], text=True).split())
    kept_back, left = [], set[int]()
    files = folder.with_name(folder.name + ".blocks")
    files.mkdir()
    session = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    script = ""
    for block in steps:
        missing = [module for module in _modules(block) if module not in present]
        if missing:
            kept_back.append(f"{page.name}:{block.line} needs {', '.join(missing)}")
            left.add(block.line)
            continue
        text = block.text if port is None else _beside_others(block.text, port)
        place = shlex.quote(f"{page.relative_to(ROOT)}:{block.line}")
        session.append(f"trap 'echo the block at {place} ended with code $? >&2' ERR")
        if not block.title and block.language == "sh":
            session += _command(text, block.marks.get("exits"))
            continue
        file = files / str(block.line)
        if not block.title:
            script = text = script + text if "continues" in block.marks else text
        file.write_text(text, "utf-8")
        target = block.title or f"example_{block.line}.py"
        session.append(f"mkdir -p {shlex.quote(os.path.dirname(target) or '.')}")  # noqa: PTH120
        session.append(f"cp {shlex.quote(str(file))} {shlex.quote(target)}")
        if not block.title:
            session += _command(f"python {target}", block.marks.get("exits"))
    (files / "session.sh").write_text("\n".join([*session, ""]), "utf-8")
    code, output = _played(files, folder, python)
    return Outcome(code, output, kept_back, frozenset(left))


def _install(steps: Iterable[Block], python: str) -> None:
    """Install what a page installs before it is asked which modules are there."""
    for block in steps:
        for line in _INSTALL.findall(block.text) if block.language == "sh" and not block.marks else ():
            subprocess.run([python, "-m", *shlex.split(line)], check=True, stdout=subprocess.DEVNULL)


def free_port() -> int:
    """A port that no server has."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _modules(block: Block) -> list[str]:
    return [module.strip() for module in block.marks.get("needs", "").split(",") if module.strip()]


def _beside_others(text: str, port: int) -> str:
    text = re.sub(rf"(localhost:|127\.0\.0\.1:|--port ){PORT}\b", rf"\g<1>{port}", text)
    return _INSTALL.sub(":", text)


def _command(text: str, code: str | None) -> list[str]:
    lines = [text.rstrip("\n")]
    if code is not None:
        lines = [
            "set +e",
            "(set -e",  # so that no command but the last may fail unseen
            *lines,
            ")",
            f'[ $? = {int(code)} ] || {{ echo "this should end with code {code}" >&2; exit 1; }}',
        ]
        lines.append("set -e")
    return lines + [_WAIT.format(port=served) for served in _SERVED.findall(text)]


def _played(files: Path, folder: Path, python: str) -> tuple[int, str]:
    """The session's output goes to a file: a server that outlives its page would keep a pipe open."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TRUNKLINE_", "OPENAI_"))}
    # Not resolved: the interpreter of a virtual environment is a link, and its programs lie beside the link.
    env = kept | {"PATH": f"{Path(python).absolute().parent}:{kept.get('PATH', '')}", "COLUMNS": "120"}
    printed = files / "output"
    with printed.open("wb") as out:
        session = subprocess.Popen(
            ["bash", str(files / "session.sh")],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = session.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session.pid, signal.SIGKILL)
    return code, printed.read_text("utf-8", "replace")


def missing_lines(found: Iterable[Block], done: Outcome) -> Iterator[str]:
    """Lines that a page shows as output, and that its session did not print.

    Numbers may differ, but for lines of little else. What a block that was kept back would print is passed over.
    """
    exact, printed = _plain(done.output), _masked(done.output)
    left = False
    for block in found:
        if block.runs:
            left = block.line in done.left
        if "output" in block.marks and not left:
            for line in block.text.splitlines():
                shown = _plain(line.strip().removesuffix("…")).strip()
                few = len(re.findall("[A-Za-z]", shown)) < _FEW
                if shown and (shown not in exact if few else _masked(shown) not in printed):
                    yield f"line {block.line}: {line}"


def _plain(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text)


def _masked(text: str) -> str:
    return re.sub(r"[\d#][\d,.:%-]*", "#", _plain(text))
