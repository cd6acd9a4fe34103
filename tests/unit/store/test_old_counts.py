"""Figures of earlier versions that a check accepts, and those that it does not."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from toy_model import ToyEngine

from trunkline.agent import Agent
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.request import Sampling
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.store.sums import ROWS_SUM, rows_sum
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.types import Task


@tool
async def look(what: str) -> str:
    """Look at something.

    Args:
        what: The thing.
    """
    return f"seen {what}"


def problems(path: Path, **figures: int) -> list[str]:
    """What a check says of a file whose only tree has other figures, with a checksum that fits them."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for column, value in figures.items():
            connection.execute(f"UPDATE trees SET {column} = ?", (value,))
        connection.execute(ROWS_SUM, (rows_sum(connection, 0), 0))
    with RunReader.open(path) as reader:
        return reader.check()


@pytest.mark.parametrize("turns", [1, 9])
def test_tokens_of_a_tree_whose_last_observations_have_no_ids_may_be_counted_by_usage(turns: int, tmp_path: Path):
    engine = ToyEngine(tmp_path)
    agent = Agent(model="toy", tools=[look], dialect="hermes", max_turns=turns, sampling=Sampling(max_tokens=300))
    llm, out = BatchLLM(engine, tokens=engine.tokens), tmp_path / "r"
    result = run(agent, [Task.ask("what?", id="q")], llm=llm, strategy=Chain(4), seed=3, workers=0, out=out)
    (tree,) = result
    ended = {rollout.termination for rollout in tree.rollouts}
    assert ("max_turns" in ended) == (turns == 1)
    assert tree.tokens.exact
    assert problems(result.path) == []
    found = problems(result.path, exact=0, flat=7, tree=6, longest=5)
    if turns == 9:
        assert found[0] == 'task "q": trees: flat is 7 in the row and ' + f"{tree.tokens.flat} in the deltas"
        assert found[-1] == 'task "q": trees: exact is 0 in the row and 1 in the deltas'
    else:
        assert found == []
        assert problems(result.path, exact=1)[0].startswith('task "q": trees: flat is 7 in the row')
