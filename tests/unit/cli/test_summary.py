"""The summary of a run: what is in it for any run, and that it is safe to print."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trunkline._internal.text import printable
from trunkline.cli.output import heading, summary_rows
from trunkline.cli.tables import rows_of
from trunkline.scoring.metrics import Estimate
from trunkline.store.stats.summary import Resources, ServerLoad, ServerUse, Summary
from trunkline.tree.tokens import Tokens
from trunkline.types import Termination, Usage

counts = st.integers(0, 10**7)
names = st.text(min_size=1, max_size=30)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    low, value, high = sorted(draw(st.tuples(*[st.floats(0, 1)] * 3)))
    low, high = (low, high) if draw(st.booleans()) else (None, None)
    return Estimate(value=value, low=low, high=high, tasks=draw(counts), tries=9, scored=draw(counts))


@st.composite
def summaries(draw: st.DrawFn) -> Summary:
    endings = draw(st.dictionaries(st.sampled_from([one.value for one in Termination] + ["growing"]), counts))
    rollouts = sum(endings.values())
    failures = draw(st.dictionaries(names | st.just("(unknown)"), st.integers(1, 9)))
    use = ServerUse().after(ServerLoad(draw(counts), draw(counts), draw(st.none() | st.floats(0, 1))))
    tasks = draw(counts)
    return Summary(
        state=draw(st.sampled_from(["done", "running", "interrupted", "budget", "exhausted"])),
        tasks=tasks,
        finished=draw(st.integers(0, tasks)),
        broken=0,
        rollouts=rollouts,
        scored=draw(st.integers(0, rollouts)),
        tries=draw(st.integers(0, 64)),
        short=draw(counts),
        accuracy=draw(st.none() | estimates()),
        best_of_n=draw(st.none() | estimates()),
        majority=draw(st.none() | estimates()),
        tokens=Tokens(*draw(st.tuples(*[counts] * 5)), draw(counts)),
        usage=Usage(calls=draw(counts), prompt=draw(counts), generated=draw(counts), tools=draw(counts)),
        terminations=endings,
        failed=draw(counts),
        failures=[],
        forks_refused=0,
        refusals=[],
        replayed=0,
        llm_seconds=draw(st.floats(0, 1e6)),
        tool_seconds=draw(st.floats(0, 1e6)),
        seconds=draw(st.floats(0, 1e7)),
        model=draw(st.text(max_size=200)),
        reward=draw(st.text(max_size=200)),
        tool_failures=failures,
        empty=draw(st.integers(0, endings.get("answer", 0))),
        retried=endings.get("retried", 0),
        solved=draw(counts),
        strategy=draw(st.sampled_from(["", "Chain(n=4)", "TreeGRPO(trees=2)"])),
        resources=draw(st.none() | st.builds(Resources, counts, st.just({draw(names): use}))),
    )


def number(words: str) -> int:
    return int(words.replace(",", ""))


@given(summaries(), names)
def test_any_summary_adds_up_and_is_safe_to_print(summary: Summary, file: str):
    rows = summary_rows(summary, file)
    shown = [heading(summary, file), *(value for _, value in rows), *(value for _, value in rows_of(summary))]
    assert all(printable(one) == one for one in shown)
    said = dict(rows)
    parts = [part.split(" (")[0] for part in said["ended"].split(" · ")]
    told = [number(re.match(r"[\d,]+", part)[0]) for part in parts if not re.search(r" errors?$", part)]
    broke = re.findall(r"\w+ ([\d,]+)", said["ended"].partition("(")[2])
    assert sum(told) + sum(map(number, broke)) == summary.rollouts, "every rollout is in the line of endings, once"
    assert ("sharing" in said) <= (summary.strategy != "Chain(n=4)")
    assert (summary.accuracy is None) == said["accuracy"].startswith("not known")
    assert len(rows) <= 14
