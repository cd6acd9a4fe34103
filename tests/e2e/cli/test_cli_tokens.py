"""``--tokens`` against the simulator's server: exact ids, strategies that fork inside turns, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import started, trunkline
from foreign import capital_cities, serving

import trunkline as tl
from trunkline.sim.tools import CORPUS_VARIABLE


@pytest.fixture
def folder(tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    shutil.copy(world / "questions.jsonl", tmp_path / "q.jsonl")
    return tmp_path


RUN = (
    "run",
    "q.jsonl",
    "-n",
    2,
    "-m",
    "sim-agent",
    "--tools",
    "trunkline.sim.tools",
    "-w",
    0,
    "--seed",
    1,
    "--out",
    "r.run",
)


@pytest.mark.parametrize("api", ["chat", "completions", "generate"])
def test_ids_are_kept_by_each_api(api: str, folder: Path, url: str):
    done = trunkline(folder, *RUN, "--base-url", url, "--tokens", api, "--max-tokens", 2000, "--json")
    assert done.returncode == 0, done.stderr
    with tl.RunReader.open(folder / "r.run") as reader:
        assert all(tree.tokens.exact for tree in reader.trees())
        assert reader.check() == []
    told = trunkline(folder, "show", "r.run", "--confidence", "logprob")
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("strategy", ["entropy-tree", "partial:budget=6,samples=2"])
def test_strategies_that_fork_inside_turns_run(strategy: str, folder: Path, url: str):
    options = ("--base-url", url, "--strategy", strategy, "--max-tokens", 2000)
    if strategy == "entropy-tree":
        refused = trunkline(folder, *RUN, *options)
        assert refused.returncode == 2
        assert "--tokens completions" in refused.stderr
    done = trunkline(folder, *RUN, *options, "--tokens", "completions:drift=fork", "--json")
    assert done.returncode == 0, done.stderr
    with tl.RunReader.open(folder / "r.run") as reader:
        assert all(tree.tokens.exact for tree in reader.trees())


def test_a_resumed_run_keeps_them_in_its_workers(folder: Path, url: str):
    done = started(
        *map(str, RUN[:8]), "-w", "1", "--out", "r.run", "--base-url", url, "--tokens", "chat", "--budget", "calls=3",
        cwd=folder, **{CORPUS_VARIABLE: str(folder / "none")},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    again = trunkline(folder, "resume", "r.run", "-w", 0, "--budget", "calls=1000")
    assert again.returncode == 0, again.stderr
    with tl.RunReader.open(folder / "r.run") as reader:
        assert all(tree.tokens.exact for tree in reader.trees())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens", "chats"], "'chats' is none of chat, completions, generate (did you mean chat?)"),
        (["--tokens", "chat:drfit=fork"], "drfit"),
        (["--tokens", "chat:drift=on"], "drift must be one of bridge, realign, fork, not 'on'"),
        (["--tokens", "completions"], "needs sampling.max_tokens (--max-tokens)"),
        (["--llm", "judge=http://127.0.0.1:9/v1,tokens=caht"], "--llm judge: tokens 'caht' is none of chat"),
    ],
)
def test_mistakes_are_one_line(options: list[str], words: str, folder: Path):
    done = trunkline(folder, *RUN, "--base-url", "http://127.0.0.1:9/v1", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (folder / "r.run").exists()


def test_a_server_without_ids_is_named_with_the_option(folder: Path):
    with serving(capital_cities) as server:
        done = trunkline(folder, *RUN, "--base-url", server.url, "--tokens", "chat")
    assert done.returncode == 2, done.stderr
    assert "lacks, for 'sim-agent'" in done.stderr
    assert "(--tokens chat)" in done.stderr


def test_the_library_takes_the_same_text():
    made = tl.LLM("http://127.0.0.1:9/v1", tokens="completions:drift=fork").tokens
    assert made == tl.TokenMode(api="completions", drift="fork")
    assert json.loads(json.dumps(tl.LLM(tokens="chat").settings()))["tokens"] == {"api": "chat"} | {
        name: getattr(tl.TokenMode(), name) for name in ("drift", "realign_limit", "tokenizer", "template")
    }
