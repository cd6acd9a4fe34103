"""What pages of training print: shared tokens stand once, advantages have both signs, weights are told apart."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import doc_pages
from places import ROOT

import trunkline as tl


def printed(page: str, folder: Path) -> str:
    """What a page of docs prints when it runs in a folder."""
    folder.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    done = doc_pages.run(ROOT / "docs" / page, folder, port=port)
    assert done.code == 0, done.output
    return done.output


def test_the_lesson_trains_some_tokens_up_and_others_down(tmp_path: Path):
    output = printed("tutorials/training-loop.md", tmp_path / "page")
    assert "{'groups': 8, " in output
    tokens, trained = map(int, re.findall(r"(\d+) tokens, (\d+) of them trained", output)[0])
    assert tokens > trained > 0
    low, high = map(float, re.findall(r"advantages from (\S+) to (\S+)", output)[0])
    assert low < 0 < high
    assert re.findall(r"sampled by the weights (.*)", output) == ["{0}", "{1}", "{2}"]


def test_weights_change_in_the_middle_of_a_step(tmp_path: Path):
    output = printed("how-to/trainers.md", tmp_path / "page")
    steps = re.findall(r"step (\d): (\d+) tokens, (\d+) in flat rows, weights (.*)", output)
    assert [(step, weights) for step, *_, weights in steps] == [("0", "[0, 1]"), ("1", "[1, 2]")], output
    assert all(int(flat) > int(tokens) > 0 for _, tokens, flat, _ in steps)
    batch = tl.train.batch(tl.open(tmp_path / "page" / "0.run"), estimator="tree_grpo", shared="once")
    assert 0 < len(batch.tree()["offsets"]) - 1 <= 10
    turns = batch.by_turn().padded(max_prompt=4096, long_prompt="cut", max_response=2048)
    assert len(turns["groups"]) > 10
