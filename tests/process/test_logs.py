"""Logs: lines of JSON from every process, which nobody waits for and no secret gets into."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, serving
from places import python_path

from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.observability.logging import LogSink, json_line, log_to, relog
from trunkline.protocol.messages import Log
from trunkline.runner.run import run
from trunkline.tools.tool import tool
from trunkline.worker.log_relay import LogForwarder

logger = logging.getLogger("trunkline.test")


@tool(name="lookup")
async def chatty(country: str) -> str:
    """Look a country up and talk about it.

    Args:
        country: Its name.
    """
    key = os.environ.get("OPENAI_API_KEY")
    logging.getLogger("my.tools").warning("asked for %s \x1b[31m sk-abcdefghijklmnop %s", country, key)
    return f"capital: {CAPITALS[country]}"


@tool(name="lookup")
async def babbling(country: str) -> str:
    """Look a country up and log much more than anybody reads.

    Args:
        country: Its name.
    """
    for number in range(5000):
        logging.getLogger("my.tools").warning("babble %d", number)
    return f"capital: {CAPITALS[country]}"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_tools_log_in_workers_is_in_the_log_of_the_run(workers: int, tmp_path: Path, caplog, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "nobody-sees-a-pattern")
    with serving(capital_cities) as server, log_to(tmp_path / "log"):
        llm = LLM(server.url, max_concurrency=4)
        run(agent(tools=[chatty]), tasks()[:2], llm=llm, workers=workers, out=tmp_path / "r")
    if not workers:
        # In this process it is somebody's own logger, and none of ours.
        assert "my.tools" in {record.name for record in caplog.records}
        return
    found = [line for line in lines(tmp_path / "log") if line["logger"] == "my.tools"]
    assert {line["worker"] for line in found} <= {0, 1}
    assert len(found) == 2
    for line in found:
        assert line["level"] == "warning"
        assert line["message"].startswith(f"worker {line['worker']}: asked for ")
        assert line["message"].endswith("\\x1b[31m (not stored) [key]")
        assert line["time"].endswith("+00:00")


def test_a_flood_in_a_worker_is_cut_and_counted(tmp_path: Path):
    with serving(capital_cities) as server, log_to(tmp_path / "log"):
        llm = LLM(server.url, max_concurrency=2)
        result = run(agent(tools=[babbling]), tasks()[:2], llm=llm, workers=1, out=tmp_path / "r")
    assert result.summary().finished == 2
    messages = [line["message"] for line in lines(tmp_path / "log")]
    assert 500 <= sum("babble" in message for message in messages) < 3000
    assert any("came too fast" in message for message in messages) or len(messages) < 3000


def test_a_broken_rollout_is_logged_with_its_task_and_the_end_of_its_traceback(tmp_path: Path):
    with log_to(tmp_path / "log", "debug"):
        try:
            raise ValueError("Bearer abcdefgh\u202e")
        except ValueError:
            logger.exception("it %s", "broke", extra={"task": "t\n1", "rollout": 3})
    (line,) = lines(tmp_path / "log")
    assert (line["task"], line["rollout"], line["message"]) == ("t\\n1", 3, "it broke")
    assert line["trace"].endswith("ValueError: Bearer (not stored)")


class Slow(io.StringIO):
    """A stream that writes nothing before it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, text: str) -> int:
        self.gate.wait(20)
        return super().write(text)


def test_a_line_has_no_key_and_no_character_that_steers_a_terminal():
    record = logging.makeLogRecord({"name": "a\nb", "msg": "sk-abcdefghijklmnop \x1b[31m \u202e", "task": "c\x1bd"})
    line = json.loads(json_line(record))
    assert line["message"] == "(not stored) \\x1b[31m \\u202e"
    assert (line["logger"], line["task"]) == ("a\\nb", "c\\x1bd")


def test_a_stream_that_is_stuck_holds_up_nobody_and_what_finds_no_room_is_counted():
    stream = Slow()
    sink = LogSink(lambda: stream, json_line, logging.INFO, waiting=10)
    begun = time.monotonic()
    for number in range(1000):
        logger.warning("number %d", number)
    assert time.monotonic() - begun < 5
    assert sink.dropped >= 980
    stream.gate.set()
    sink.close()
    written = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert written[0] == "number 0"
    assert written[-1].startswith(f"{sink.dropped} messages were dropped")
    assert len(written) - 1 + sink.dropped == 1000


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stream_that_went_away_is_no_trouble():
    closed = io.StringIO()
    closed.close()
    for stream in (Gone(), closed):
        with log_to(stream) as sink:
            logger.warning("nobody reads this")
        assert sink.dropped == 1


def test_levels_are_those_that_were_asked_for_and_come_back(tmp_path: Path):
    ours = logging.getLogger("trunkline")
    before = ours.level
    with log_to(tmp_path / "log", "warning"), log_to(tmp_path / "all", "debug"):
        logger.debug("fine print")
        logger.warning("look")
    logger.warning("too late")
    assert [line["message"] for line in lines(tmp_path / "log")] == ["look"]
    assert [line["message"] for line in lines(tmp_path / "all")] == ["fine print", "look"]
    assert ours.level == before


def test_what_cannot_be_logged_to_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="level must be one of"):
        log_to(tmp_path / "log", "loud")
    with pytest.raises(ConfigError, match="cannot write the log"):
        log_to(tmp_path)
    with pytest.raises(ConfigError, match="a path or a text stream"):
        log_to(7)


async def test_what_waits_for_a_blocked_loop_is_written_to_standard_error(capfd: pytest.CaptureFixture[str]):
    now = [0.0]
    sent: list[Log] = []
    relay = LogForwarder(sent.append, lambda: now[0])
    relay.handle(logging.makeLogRecord({"name": "n", "levelno": 30, "msg": "stuck in f()"}))
    relay.spill()
    assert capfd.readouterr().err == ""
    now[0] = 6.0
    relay.spill()
    assert capfd.readouterr().err == "stuck in f()\n"
    await asyncio.sleep(0)
    assert sent == [], "it is said once"


def test_a_worker_cannot_forge_names_or_lines(caplog: pytest.LogCaptureFixture):
    before = set(logging.root.manager.loggerDict)
    for number in range(50):
        relog(1, Log(0.0, 40, f"trunkline.made.up{number}", "a\nb", {"worker": 7, "msg": "x"}))  # type: ignore[dict-item]
    assert set(logging.root.manager.loggerDict) - before <= {"trunkline.worker"}
    assert {(record.getMessage(), record.worker) for record in caplog.records} == {("worker 1: a\\nb", 7)}


def test_a_command_goes_on_without_a_standard_error_that_anybody_reads(tmp_path: Path):
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(f'{{"question": "Capital of {c}?", "answer": "{a}"}}\n' for c, a in CAPITALS.items()))
    with serving(capital_cities) as server:
        command = [sys.executable, "-m", "trunkline.cli", "run", str(questions), "-m", "m", "--base-url", server.url]
        command += ["--tools", "atlas:lookup", "--log", str(tmp_path / "log"), "--log-level", "debug", "-o"]
        read, write = os.pipe()
        os.close(read)
        path = python_path()
        done = subprocess.run(
            [*command, str(tmp_path / "r")],
            stderr=write,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OPENAI_API_KEY": "my-own-secretsecret"},
            timeout=120,
        )
        os.close(write)
    assert done.returncode == 0, done.stdout.decode()
    assert b"5" in done.stdout
    assert "secretsecret" not in (tmp_path / "log").read_text()
