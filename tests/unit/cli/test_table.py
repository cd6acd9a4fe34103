from __future__ import annotations

import msgspec
import pytest

from trunkline._internal.text import duration
from trunkline.cli.tables import table
from trunkline.runner.broken import judge
from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.store.stats.summary import Summary, summarise
from trunkline.tree.records import Failure

META = {"state": "done", "created": "100.0", "updated": "160.0", "finished": "162.0", "seconds": "62.0"}


def row(rollout: int, termination: str | None, answer: str | None, reward: float | None, **usage: int) -> RolloutRow:
    counts = {
        "calls": 2,
        "prompt": 100,
        "cached": 40,
        "generated": 20,
        "unreported": 0,
        "retries": 1,
        "tools": 3,
        "tool_errors": 0,
        "bridged": 0,
        "realigned": 0,
        "forked": 0,
    } | usage
    return RolloutRow(
        rollout,
        f"0,{rollout}",
        rollout,
        3,
        termination,
        answer,
        None,
        reward,
        None,
        2,
        **counts,
        llm_micros=1,
        tool_micros=1,
        length=20,
        action="0123456789abcdef",
    )


NONE = {"prompt": 0, "cached": 0, "generated": 0}


def tree(**figures: int) -> TreeRow:
    base = {
        "nodes": 5,
        "rollouts": 2,
        "flat": 1000,
        "tree": 600,
        "longest": 500,
        "flat_generated": 80,
        "tree_generated": 60,
        "unreported": 0,
    }
    return TreeRow(digest="d", **(base | figures))


def totals(*rollouts: RolloutRow, meta: dict[str, str] = META, tasks: int = 1) -> Summary:
    return summarise(meta, tasks, [tree()], [(0, entry) for entry in rollouts])


def cells(summary: Summary) -> dict[str, str]:
    lines = table(summary).split("\n")
    starts = {len(line) - len(line.partition("  ")[2].lstrip()) for line in lines}
    assert len(starts) == 1  # values stand under one another
    at = starts.pop()
    return {line[:at].strip(): line[at:] for line in lines}


def test_the_table() -> None:
    found = cells(totals(row(0, "answer", "Ada", 1.0), row(1, "answer", "Bob", 0.0), row(2, "answer", "Ada", 1.0)))
    assert found == {
        "tasks done": "1 of 1",
        "rollouts": "3  (answer 3)",
        "accuracy of one try": "66.7 %",
        "best of 3": "100.0 %",
        "majority of 3": "100.0 %",
        "tokens flat (server usage)": "1,000  (80 generated)",
        "tokens as a tree": "600  (60 generated)",
        "reuse": "40.0 %  (400 tokens shared)",
        "prompt tokens by turn": "300, 120 of them cached  (40.0 %), 180 not",
        "distinct first actions per task": "1.0 of 3.0",
        "distinct answers per task": "2.0 of 3.0",
        "effective tries per task": "3.0 of 3.0  (each is a chain of its own)",
        "model turns": "6",
        "tool calls": "9",
        "retries": "3",
        "wall time": "62 s  (0.0 rollouts/s)",
    }


def test_every_rollout_failing_is_never_accuracy_zero() -> None:
    found = cells(totals(row(0, "llm_error", None, None), row(1, "lost", None, None)))
    assert found["accuracy of one try"] == "0 of 2 scored"
    assert found["rollouts that broke"] == "2, not scored"
    assert found["rollouts"] == "2  (llm_error 1, lost 1)"
    assert not any("best" in label or "majority" in label for label in found)
    assert "0.0 %" not in found["accuracy of one try"]


@pytest.mark.parametrize(("threshold", "code"), [(0.0, 1), (0.4, 1), (0.5, 0), (0.99, 0), (1.0, 1), (2.0, 0), (3.0, 0)])
def test_a_threshold_below_1_is_a_share_of_the_rollouts_and_from_1_on_a_count(threshold: float, code: int) -> None:
    broken = [row(number, "llm_error", None, None) for number in range(2)]
    sound = [row(number, "answer", "4", 1.0) for number in range(2, 4)]
    assert judge(totals(*broken, *sound), threshold) == code


def test_what_is_partly_scored_or_unfinished_is_said() -> None:
    meta = META | {"state": "interrupted"}
    found = cells(totals(row(0, "answer", "Ada", 1.0), row(1, None, None, None), meta=meta, tasks=1_500))
    assert found["scored"] == "1 of 2 rollouts"
    assert found["tasks done"] == "1 of 1,500  (interrupted)"
    assert found["rollouts"] == "2  (answer 1, growing 1)"


def test_missing_usage_is_said_and_not_shown_as_zero() -> None:
    found = cells(totals(row(0, "answer", "Ada", 1.0, prompt=0, cached=0, generated=0, unreported=2)))
    assert found["tokens (server usage)"] == "not reported by the server"
    assert "tokens as a tree" not in found
    assert "reuse" not in found
    assert "prompt tokens by turn" not in found
    zeros = summarise(
        META, 1, [tree(flat=0, tree=0, flat_generated=0, tree_generated=0)], [(0, row(0, "answer", "a", 1.0, **NONE))]
    )
    assert cells(zeros)["tokens (server usage)"] == "not reported by the server"
    assert "prompt tokens by turn" not in cells(zeros)
    unanswered = cells(totals(row(0, "llm_error", None, None, calls=0, **NONE)))
    assert unanswered["tokens (server usage)"] == "none, no request was answered"
    partly = cells(totals(row(0, "answer", "Ada", 1.0, unreported=1)))
    assert partly["turns without usage"] == "1, counted in no total"


def broke(rollout: int, error: str) -> RolloutRow:
    return msgspec.structs.replace(row(rollout, "llm_error", None, None), error=error)


def test_the_most_frequent_error_is_shown_whole_and_escaped() -> None:
    long = "503 from \x1b[2J " + "x" * 500
    rows = [
        broke(0, Failure("LLMError", long, 6).encode()),
        broke(1, "other"),
        broke(2, Failure("LLMError", long).encode()),
    ]
    found = cells(totals(*rows))
    assert found["rollouts that broke"] == "3, not scored"
    assert found["most frequent error"] == "(2 of 3) 503 from \\x1b[2J " + "x" * 500
    assert "most frequent error" not in cells(totals(row(0, "answer", "a", 1.0)))


def test_failed_tool_calls_are_said() -> None:
    some = cells(totals(row(0, "answer", "a", 1.0, tools=3, tool_errors=2)))
    assert some["tool calls"] == "3, 2 of them failed"
    assert "warning" not in some
    every = cells(
        totals(
            row(0, "answer", "a", 1.0, tools=78, tool_errors=78), row(1, "answer", "a", 1.0, tools=78, tool_errors=78)
        )
    )
    assert every["tool calls"] == "156, 156 of them failed"
    assert every["warning"].startswith("every tool call failed")
    assert "warning" not in cells(totals(row(0, "answer", "a", 1.0, tools=0)))


def test_tries_that_are_missing_from_the_best_of_them_are_said() -> None:
    rows = [(task, row(draw, "answer", "a", 1.0)) for task in range(3) for draw in range(4)]
    whole = cells(summarise(META, 3, [tree()] * 3, rows))
    assert "fewer" not in whole["best of 4"]
    rows[0] = (0, row(0, "lost", None, None))
    rows[4:8] = [(1, row(draw, "lost", None, None)) for draw in range(4)]
    found = cells(summarise(META, 3, [tree()] * 3, rows))
    assert found["best of 4"].endswith("  (2 of 3 tasks have fewer than 4 scored tries)")


def test_intervals_and_rewards_beyond_one() -> None:
    rows = [(task, row(0, "answer", "a", float(task % 2))) for task in range(40)]
    found = cells(summarise(META, 40, [tree()] * 40, rows))
    assert found["accuracy of one try"].startswith("50.0 %  (95 %: 3")
    rows = [(task, row(0, "answer", "a", 10.0 + task)) for task in range(3)]
    assert cells(summarise(META, 3, [tree()] * 3, rows))["accuracy of one try"].startswith("11.000  (95 %: ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (62, "62 s"),
        (125, "2 min 05 s"),
        (3599.9, "1 h 00 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rows_of_one_task_stand_together_whatever_their_order() -> None:
    rows = [(0, row(0, "answer", "a", 1.0)), (1, row(0, "answer", "b", 0.0))]
    assert table(summarise(META, 2, [tree()] * 2, rows)) == table(summarise(META, 2, [tree()] * 2, rows[::-1]))


def test_tokens_counted_from_ids_need_no_usage() -> None:
    mute = row(0, "answer", "Ada", 1.0, prompt=0, cached=0, generated=0, unreported=2)
    summary = summarise(META, 1, [tree(exact=1)], [(0, mute)])
    assert summary.tokens.exact
    found = cells(summary)
    assert found["tokens flat (token ids)"] == "1,000  (80 generated)"
    assert "prompt tokens by turn" not in found
    assert not summarise(META, 1, [tree(exact=1), tree()], [(0, mute)]).tokens.exact
    assert not summarise(META, 1, [], []).tokens.exact


def test_a_run_without_a_rollout_has_no_tokens_from_ids_to_show() -> None:
    broken = tree(exact=1, rollouts=0, flat=0, tree=0, longest=0, flat_generated=0, tree_generated=0)
    assert cells(summarise(META, 1, [broken], []))["tokens (server usage)"] == "none, no request was answered"


def test_drifted_prompts_are_said_by_what_became_of_them():
    assert "drifted prompts" not in cells(totals(row(0, "answer", "a", 1.0)))
    some = cells(totals(row(0, "answer", "a", 1.0, bridged=2, forked=1200), row(1, "answer", "a", 1.0, forked=1)))
    assert some["drifted prompts"] == "2 bridged, 1,201 forked"
