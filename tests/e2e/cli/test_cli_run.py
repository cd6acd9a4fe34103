"""``trunkline run`` on hand-written questions, good and bad, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS
from commands import only_line, started, trunkline
from foreign import capital_cities, error, message, serving


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    rows = [{"id": c, "question": f"Capital of {c}?", "answer": a, "topic": "atlas"} for c, a in CAPITALS.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def left_behind(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != "questions.jsonl")


def test_a_rate_that_is_none_is_named(questions: Path, tmp_path: Path):
    done = started("run", questions.name, "-m", "m", "--rpm", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--rpm" in only_line(done.stderr)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_from_file_to_table(questions: Path, tmp_path: Path, workers: str):
    with serving(capital_cities) as server:
        done = started(
            "run", questions.name, "-m", "m", "--base-url", server.url, "--tools", "atlas:lookup", "-r", "2",
            "-w", workers, "--out", "deep/er/r.run", "--json", "--seed", "1", "--rpm", "60000", "--tpm", "1e9",
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sent = server.bodies[0]
    assert sent["model"] == "m"
    assert sent["tools"][0]["function"]["name"] == "lookup"
    assert isinstance(sent["seed"], int)
    summary = json.loads(done.stdout)
    assert summary["tasks"] == 5
    assert summary["rollouts"] == 10
    assert summary["accuracy"]["value"] == 1.0
    assert "run file: deep/er/r.run" in done.stderr, "paths are never wrapped"
    shown = started("show", "deep/er/r.run", "--task", "Brazil", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "lookup" in shown.stdout
    assert "Brasilia" in shown.stdout
    checked = started("check", "deep/er/r.run", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    again = started("run", questions.name, "-m", "m", "--base-url", server.url, "--out", "deep/er/r.run", cwd=tmp_path)
    assert again.returncode == 2
    assert "deep/er/r.run" in only_line(again.stderr)


@pytest.mark.parametrize(
    ("options", "asked"),
    [([], (None, None)), (["--logprobs"], (True, None)), (["--top-logprobs", "5"], (True, 5))],
)
def test_log_probs_are_asked_for_by_option(
    questions: Path, tmp_path: Path, options: list[str], asked: tuple[bool | None, int | None]
):
    with serving(capital_cities) as server:
        done = started("run", questions.name, "-m", "m", "--base-url", server.url, "-w", "0", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {(body.get("logprobs"), body.get("top_logprobs")) for body in server.bodies} == {asked}


def test_csv_and_stdin(tmp_path: Path):
    (tmp_path / "q.csv").write_text("id,question,answer\nFrance,Capital of France?,Paris\n")
    with serving(capital_cities) as server:
        common = ("-m", "m", "--base-url", server.url, "--tools", "atlas:lookup", "-w", "1", "--json")
        from_csv = started("run", "q.csv", *common, "-o", "a.run", cwd=tmp_path)
        row = '{"prompt": "Capital of Japan?", "target": "Tokyo"}\n'
        from_stdin = started("run", "-", *common, "-o", "b.run", cwd=tmp_path, stdin=row)
    assert json.loads(from_csv.stdout)["accuracy"]["value"] == 1.0, from_csv.stderr
    assert json.loads(from_stdin.stdout)["accuracy"]["value"] == 1.0, from_stdin.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "questions.jsonl"),
        ("", "empty"),
        (
            "\n".join([json.dumps({"id": i, "question": "q"}) for i in range(16)] + ["{oops"]),
            ":17",
        ),
        ('{"id": 1, "question": "a"}\n{"id": 1, "question": "b"}\n', "1"),
        ('{"id": 1, "text": "a"}\n', "question"),
        ("[1, 2]\n", ":1"),
    ],
    ids=["missing file", "empty file", "invalid JSON on line 17", "duplicate ids", "no question", "not an object"],
)
def test_bad_questions_are_one_line(tmp_path: Path, content: str | None, says: str):
    file = tmp_path / "questions.jsonl"
    if content is not None:
        file.write_text(content)
    done = started("run", "questions.jsonl", "-m", "m", "--base-url", "http://127.0.0.1:9/v1", cwd=tmp_path)
    assert done.returncode == 2
    line = only_line(done.stderr)
    assert "questions.jsonl" in line
    assert says in line
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--modle", "m"], 2, "--modle"),
        (["-m", "m", "--tools", "no_such_module:x"], 2, "no_such_module"),
        (["-m", "m", "--tools", "atlas:nothing"], 2, "nothing"),
        (["-m", "m", "--tools", "atlas:tasks"], 2, "@tool"),
        (["-m", "m", "--tools", "broken_tools:search"], 2, "broken_tools"),
        (["-m", "m", "--reward", "atlas:absent"], 2, "absent"),
        (["-m", "m", "--base-url", "ftp://x"], 2, "ftp"),
        (["-m", "m", "--temperature", "-1"], 2, "temperature"),
        (["-m", "m", "-r", "0"], 2, "from 1 to"),
        (["-m", "m", "--workers", "-3"], 2, "workers"),
        (["-m", "m", "--top-logprobs", "21"], 2, "--top-logprobs"),
        (["-m", "m", "--base-url", "http://127.0.0.1:9/v1"], 3, "127.0.0.1:9"),
    ],
)
def test_bad_options_are_one_line(questions: Path, tmp_path: Path, arguments: list[str], code: int, says: str):
    (tmp_path / "broken_tools.py").write_text("import json\n1 / 0\n")
    (tmp_path / "broken_tools.py").touch()
    given = "run", questions.name, *arguments, "--max-retries", "0"
    imports = "--tools" in arguments or "--reward" in arguments  # of modules in the folder, for the whole process
    done = started(*given, cwd=tmp_path) if imports or code != 2 else trunkline(tmp_path, *given)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
    assert len(errors) == 1, done.stderr
    assert [p for p in left_behind(tmp_path) if "broken_tools" not in p] == []


def test_a_wrong_key_stops_at_once_and_is_never_shown(questions: Path, tmp_path: Path):
    with serving(lambda _b: error(401, "Incorrect API key provided: sk-very-secret", "invalid_api_key")) as server:
        done = started(
            "run", questions.name, "-m", "m", "--base-url", server.url, "-o", "r.run",
            cwd=tmp_path, OPENAI_API_KEY="sk-very-secret",
        )  # fmt: skip
        assert server.headers[0]["Authorization"] == "Bearer sk-very-secret"
    assert done.returncode == 3
    assert "OPENAI_API_KEY" in done.stderr
    assert "sk-very-secret" not in done.stderr + done.stdout
    assert left_behind(tmp_path) == []


def test_the_key_is_in_no_file(questions: Path, tmp_path: Path):
    with serving(capital_cities) as server:
        done = started(
            "run", questions.name, "-m", "m", "--base-url", server.url, "--tools", "atlas:lookup", "-o", "r.run",
            cwd=tmp_path, OPENAI_API_KEY="sk-very-secret",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in left_behind(tmp_path):
        assert b"sk-very-secret" not in (tmp_path / name).read_bytes()


def test_when_every_sample_fails_nothing_is_called_accuracy(questions: Path, tmp_path: Path):
    with serving(lambda _b: error(400, "no such field")) as server:
        done = started("run", questions.name, "-m", "m", "--base-url", server.url, "-o", "r.run", cwd=tmp_path)
    assert done.returncode == 1
    assert "0 of 5" in done.stdout + done.stderr
    accuracy = next(line for line in done.stdout.splitlines() if line.startswith("accuracy"))
    assert "0 of 5" in accuracy
    assert "%" not in accuracy


def test_some_failures_are_allowed_when_asked(questions: Path, tmp_path: Path):
    def sometimes(body: dict) -> object:
        return error(422, "no") if "Chile" in body["messages"][0]["content"] else capital_cities(body)

    with serving(sometimes) as server:
        common = ("run", questions.name, "-m", "m", "--base-url", server.url, "--tools", "atlas:lookup")
        assert started(*common, "-o", "a.run", cwd=tmp_path).returncode == 1
        assert started(*common, "-o", "b.run", "--fail-on-error", "1", cwd=tmp_path).returncode == 0
        assert started(*common, "-o", "c.run", "--fail-on-error", "0.2", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize("kind", ["missing", "text", "other database"])
def test_a_file_that_is_no_run(tmp_path: Path, command: str, kind: str):
    file = tmp_path / "x.run"
    if kind == "text":
        file.write_text("hello")
    elif kind == "other database":
        import sqlite3

        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        connection.close()
    done = started(command, "x.run", cwd=tmp_path)
    assert done.returncode == 2
    assert "x.run" in only_line(done.stderr)


def test_help_is_there_without_heavy_imports(tmp_path: Path):
    script = (
        "import sys; sys.argv = ['trunkline', '--help']\n"
        "from trunkline.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'rich', 'aiohttp', 'uvloop', 'sqlite3', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("demo", "run", "show", "check", "sim"):
        assert name in done.stdout


def test_the_dialect_and_what_happens_to_broken_calls_are_options(questions: Path, tmp_path: Path):
    def hermes(body: dict) -> dict:
        country = body["messages"][-1]["content"].removeprefix("Capital of ").rstrip("?")
        call = f'<tool_call>{{"name": "lookup", "arguments": {{"country": "{country}"}}</tool_call>'
        return message(call if country in CAPITALS else country.removesuffix("\n</tool_response>").rpartition(" ")[2])

    with serving(hermes) as server:
        arguments = ["run", questions.name, "-m", "m", "--base-url", server.url, "--tools", "atlas:lookup", "--json"]
        done = started(*arguments, "--dialect", "hermes", "--malformed", "repair", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["accuracy"]["value"] == 1.0
        named = started(*arguments, "--dialect", "lines:Lines", cwd=tmp_path)
    assert "give an instance of it, Lines()" in only_line(named.stderr)
    assert "lookup" in server.bodies[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dialect", "xml"], "--dialect 'xml' is none of native, hermes, search-r1; your own is written module:attr"),
        (["--dialect", "atlas:nothing"], "has no 'nothing'"),
        (["--dialect", "search-r1"], "exactly one tool"),
    ],
)
def test_a_dialect_that_cannot_be_spoken_is_one_line(questions: Path, tmp_path: Path, options: list[str], words: str):
    done = started("run", questions.name, "-m", "m", "--base-url", "http://127.0.0.1:9/v1", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert words in only_line(done.stderr)
    assert left_behind(tmp_path) == []
