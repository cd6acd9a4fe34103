"""Tables and a figure of the study's results, with the tests that PREREGISTRATION.md names. It needs Python alone."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

MARGIN = 0.02
"""Of non-inferiority, as a share of the held-out questions."""

LEAST_RISE = 0.1
"""What chains of part c must have learnt, for it to be judged."""

Record = dict[str, Any]
Name = TypeVar("Name")
Seeds = Mapping[int, float]
"""A figure of each seed."""


def t_below(t: float, df: int) -> float:
    """Return the chance that Student's t is below a value: its density integrated by Simpson's rule, to about 1e-12."""
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    # With t = sqrt(df) tan(u) the range is finite and the integrand smooth.
    end, pieces = math.atan(abs(t) / math.sqrt(df)), 2000
    step = end / pieces
    weights = (1 if place in (0, pieces) else 4 if place % 2 else 2 for place in range(pieces + 1))
    half = sum(weight * math.cos(place * step) ** (df - 1) for place, weight in enumerate(weights)) * step / 3
    area = half * scale * math.sqrt(df)
    return 0.5 + math.copysign(area, t)


def t_quantile(chance: float, df: int) -> float:
    """Return the value below which Student's t is with a chance."""
    low, high = -1e4, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, df) < chance else (low, middle)
    return (low + high) / 2


class Paired(NamedTuple):
    """Differences of two arms over the seeds that both have.

    Attributes:
        seeds: Their number.
        mean: Of the differences.
        low: Of the interval that holds the mean difference with 95 %.
        high: Likewise.
        p: Of the two-sided test that it is 0.
        detectable: The true difference that a two-sided test at 5 % finds with 80 %, for this deviation.
        least: Above which the mean difference is with 95 %, one-sided.
    """

    seeds: int
    mean: float
    low: float
    high: float
    p: float
    detectable: float
    least: float


def paired(one: Seeds, other: Seeds) -> Paired:
    """Compare ``one - other`` by Student's paired t."""
    found = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    if len(found) < 2:
        mean = fmean(found) if found else math.nan
        return Paired(len(found), mean, *[math.nan] * 5)
    mean, df = fmean(found), len(found) - 1
    error = stdev(found) / math.sqrt(len(found))
    wide = t_quantile(0.975, df)
    p = 2 * (1 - t_below(abs(mean) / error, df)) if error else float(mean == 0)
    detectable = (wide + t_quantile(0.8, df)) * error
    least = mean - t_quantile(0.95, df) * error
    return Paired(len(found), mean, mean - wide * error, mean + wide * error, p, detectable, least)


def holm(chances: Mapping[Name, float]) -> dict[Name, float]:
    """Adjust p-values for their number (Holm 1979)."""
    found, least = {}, 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min(1.0, (len(chances) - place) * chances[name]))
        found[name] = least
    return found


def area(tokens: Sequence[float], rewards: Sequence[float], budget: float) -> float:
    """Return the mean training accuracy over generated tokens up to a budget; an update's counts for its tokens."""
    total, before = 0.0, 0.0
    for after, reward in zip(tokens, rewards, strict=True):
        total += (min(after, budget) - min(before, budget)) * reward
        before = after
    return total / min(before, budget)


def read(path: Path, *keys: str) -> list[Record]:
    """Read results, or other lines that have these keys; a last line that was not written to its end is left out.

    Raises:
        SystemExit: The file cannot be read, or a line is something else.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SystemExit(f"{path} cannot be read ({error.strerror}): run `python -m rl_tools.study` first") from None
    found: list[Record] = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
            values = [record[name] for name in keys or ("code", "final", "seconds", "evaluation_seconds")]
            if not keys:
                values += [record["cell"][name] for name in ("part", "arm", "seed", "checkpoint", "rate", "tokens")]
                values += [record["curve"][name][-1] for name in ("generated", "reward")]
        except (ValueError, LookupError, TypeError):
            raise SystemExit(f"{path}: line {number} is no result: mend it, or take another file") from None
        found.append(record)
    return found


TREES = ("tree_grpo", "treerl", "tree_outcome")
PRIMARY = ("tree_grpo", "chains", "greedy")
SECONDARY = [
    *((arm, "chains", "greedy") for arm in TREES[1:]),
    *((arm, "tree_outcome", "greedy") for arm in TREES[:2]),
    *((arm, "chains", name) for name in ("sampled", "area") for arm in TREES),
]
DIVERSE = [(arm, "chains", "greedy") for arm in ("chains_avoid", "chains_ladder")]
ARMS = ("chains", *TREES)
PARTS = {
    "b": ARMS,
    "c": ("chains", "quarter_trees", "quarter_chains"),
    "d": ("chains_avoid", "chains_ladder"),
}


def by_arm(records: Iterable[Record], part: str) -> dict[str, dict[int, Record]]:
    """Return the results of a part by arm, in the order of the preregistration, and seed.

    Raises:
        SystemExit: Two results of an arm and a seed.
    """
    found: dict[str, dict[int, Record]] = defaultdict(dict)
    for record in records:
        cell = record["cell"]
        if cell["part"] == part:
            if cell["seed"] in found[cell["arm"]]:
                raise SystemExit(f"two results of part {part}, {cell['arm']}, seed {cell['seed']}: keep one of them")
            found[cell["arm"]][cell["seed"]] = record
    order = PARTS.get(part, ARMS)
    return {arm: found[arm] for arm in sorted(found, key=lambda arm: order.index(arm) if arm in order else len(order))}


LAST = ("entropy", "agree", "reuse", "mixed")
"""Figures of which the mean over the last 10 updates is shown."""


def figure(results: Mapping[int, Record], name: str) -> dict[int, float]:
    """Return one figure of each seed: ``before``, of the evaluation, ``area``, or of the end of a curve."""
    found = {}
    for seed, record in results.items():
        curve = record["curve"]
        if name == "before":
            if record["before"]:
                found[seed] = record["before"]["greedy"]
        elif name in record["final"]:
            found[seed] = record["final"][name]
        elif name == "area":
            if record["cell"]["tokens"]:
                found[seed] = area(curve["generated"], curve["reward"], record["cell"]["tokens"])
        elif name in curve:
            found[seed] = fmean(curve[name][-10:]) if name in LAST else curve[name][-1]
    return found


SHOWN = {
    "before": "greedy before training",
    "greedy": "greedy",
    "sampled": "sampled",
    "area": "area under the curve",
    "update": "updates",
    "generated": "generated tokens",
    "prompt": "prompt tokens",
    "tool_calls": "tool calls",
    "rollout_seconds": "rollout s",
    "update_seconds": "update s",
    "entropy": "entropy",
    "agree": "agreeing rollouts",
    "reuse": "reuse",
    "mixed": "mixed groups",
}


PIECES = 6
"""Rows of the table of a curve: equal parts of the budget."""


def curve_table(arms: Mapping[str, Mapping[int, Record]], one: str, other: str) -> str:
    """Return training accuracy in equal parts of the budget, and the paired difference of two arms in each."""
    budget = next(iter(arms[one].values()))["cell"]["tokens"]

    def within(record: Record, low: float, high: float) -> float:
        curve = record["curve"]
        below, above = (min(curve["generated"][-1], end) for end in (low, high))
        sums = [area(curve["generated"], curve["reward"], end) * end if end else 0.0 for end in (below, above)]
        return (sums[1] - sums[0]) / (above - below)

    lines = [
        "| generated tokens | " + " | ".join(arms) + f" | {one} - {other} | 95 % |",
        "|---" * (len(arms) + 3) + "|",
    ]
    for piece in range(PIECES):
        low, high = piece * budget / PIECES, (piece + 1) * budget / PIECES
        found: dict[str, dict[int, float]] = {
            arm: {seed: within(run, low, high) for seed, run in results.items() if run["curve"]["generated"][-1] > low}
            for arm, results in arms.items()
        }
        if not (found[one] and found[other]):
            break
        means = " | ".join(f"{fmean(values.values()):.3f}" if values else "" for values in found.values())
        pair = paired(found[one], found[other])
        row = f"| {low:,.0f} to {high:,.0f} | {means} | {pair.mean:+.3f} | {pair.low:+.3f} to {pair.high:+.3f} |"
        lines.append(row.replace("+nan to +nan", "").replace("nan to nan", ""))
    return "\n".join(lines)


def arm_table(arms: Mapping[str, Mapping[int, Record]]) -> str:
    """Return means and, for accuracies, deviations over seeds."""
    lines = ["| | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    lines.append("| seeds | " + " | ".join(str(len(results)) for results in arms.values()) + " |")
    for name, title in SHOWN.items():
        row = []
        for results in arms.values():
            values = list(figure(results, name).values())
            text = (
                f"{fmean(values):,.3f}" if values and fmean(values) < 10 else f"{fmean(values):,.0f}" if values else ""
            )
            spread = (
                f" ± {stdev(values):.3f}" if len(values) > 1 and name in ("before", "greedy", "sampled", "area") else ""
            )
            row.append(text + spread)
        if any(row):
            lines.append(f"| {title} | " + " | ".join(row) + " |")
    return "\n".join(lines)


Contrast = tuple[str, str, str]
"""An arm, the arm it is compared with, and a figure."""


def comparisons(
    arms: Mapping[str, Mapping[int, Record]], contrasts: Sequence[Contrast], primary: Contrast | None = None
) -> str:
    """Compare arms in pairs; Holm corrects all contrasts but the primary one together. The last line is a verdict."""
    found = {
        one: paired(figure(arms[one[0]], one[2]), figure(arms[one[1]], one[2]))
        for one in ([primary] if primary else []) + [*contrasts]
        if one[0] in arms and one[1] in arms
    }
    adjusted = holm({one: found[one].p for one in found if one != primary and not math.isnan(found[one].p)})
    lines = ["| difference | mean | 95 % | p | Holm | detectable |", "|---|---|---|---|---|---|"]
    for one, pair in found.items():
        corrected = "primary" if one == primary else f"{adjusted[one]:.3f}" if one in adjusted else ""
        name = f"{one[0]} - {one[1]}, {SHOWN[one[2]]} ({pair.seeds} seeds)"
        lines.append(
            f"| {name} | {pair.mean:+.3f} | {pair.low:+.3f} to {pair.high:+.3f} | {pair.p:.3f} | {corrected} |"
            f" {pair.detectable:.3f} |".replace("+nan to +nan", "").replace("nan", "")
        )
    if primary in found:
        pair = found[primary]
        name = primary[0] if pair.low > 0 else primary[1] if pair.high < 0 else ""
        lines.append(f"\nPrimary: {f'{name} better' if name else 'no difference shown'}.")
    seen = [f"{one[0]} - {one[1]}, {SHOWN[one[2]]}" for one, p in adjusted.items() if p < 0.05]
    lines.append(
        f"\nBelow .05 after Holm's correction ({len(adjusted)} contrasts): {'; '.join(seen) or 'no effect seen'}."
    )
    return "\n".join(lines)


def by_checkpoint(one: Mapping[int, Record], other: Mapping[int, Record]) -> str:
    """Return the mean difference of greedy accuracy at each imitation, which tests over seeds do not average over."""
    groups: dict[int, list[float]] = defaultdict(list)
    for seed in one.keys() & other.keys():
        difference = one[seed]["final"]["greedy"] - other[seed]["final"]["greedy"]
        groups[one[seed]["cell"]["checkpoint"]].append(difference)
    return ", ".join(f"{checkpoint}: {fmean(groups[checkpoint]):+.3f}" for checkpoint in sorted(groups))


def verdict(one: Seeds, other: Seeds) -> str:
    """Say whether one arm is not inferior to another by more than the margin."""
    found = paired(one, other)
    shown = found.least > -MARGIN
    error = (found.mean - found.least) / t_quantile(0.95, found.seeds - 1) if found.seeds > 1 else math.nan
    needed = (
        error * (t_quantile(0.95, found.seeds - 1) + t_quantile(0.8, found.seeds - 1)) if found.seeds > 1 else error
    )
    return (
        f"{'not inferior' if shown else 'not shown'}: mean difference {found.mean:+.3f}, above {found.least:+.3f} with"
        f" 95 % (one-sided, {found.seeds} seeds); margin {MARGIN}; equal arms are shown with 80 % at {needed:.3f}"
    )


def quarter(arms: Mapping[str, Mapping[int, Record]]) -> list[str]:
    """Judge part c, if chains learnt enough for it."""
    greedy = {arm: figure(results, "greedy") for arm, results in arms.items()}
    rise = paired(greedy["chains"], figure(arms["chains"], "before")).mean
    if rise < LEAST_RISE:
        return [f"\nNot judged: chains rose by {rise:+.3f}, and {LEAST_RISE} is needed."]
    found = [f"\n{arm}: {verdict(greedy[arm], greedy['chains'])}." for arm in ("quarter_trees", "quarter_chains")]
    contrast = paired(greedy["quarter_trees"], greedy["quarter_chains"])
    credit = "trees" if contrast.low > 0 else "chains" if contrast.high < 0 else "neither"
    interval = f"{contrast.mean:+.3f}, {contrast.low:+.3f} to {contrast.high:+.3f} with 95 %"
    return [*found, f"\nquarter_trees - quarter_chains: {interval}: of a quarter's budget, {credit} made more."]


END = 'text-anchor="end"'
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b")


def drawing(arms: Mapping[str, Mapping[int, Record]]) -> str:
    """Draw training accuracy over generated tokens as SVG: a thin line a seed, a thick one their mean."""
    wide, high, left, low = 720, 420, 60, 40
    most = max(record["curve"]["generated"][-1] for results in arms.values() for record in results.values())

    def place(tokens: float, reward: float) -> str:
        return f"{left + tokens / most * (wide - left - 20):.1f},{high - low - reward * (high - low - 20):.1f}"

    def line(points: Iterable[tuple[float, float]], colour: str, width: float, shade: float) -> str:
        given = " ".join(place(*point) for point in points)
        look = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{shade}"'
        return f'<polyline points="{given}" {look}/>'

    drawn = [line([(0, tenth / 5), (most, tenth / 5)], "#ccc", 0.5, 1) for tenth in range(6)]
    text = [f'<text x="8" y="{place(0, one / 5).split(",")[1]}">{one / 5:.1f}</text>' for one in range(6)]
    ticks = [most * part / 4 for part in range(1, 5)]
    text += [f'<text x="{place(one, 0).split(",")[0]}" y="{high - 24}" {END}>{one:,.0f}</text>' for one in ticks]
    text.append(f'<text x="{wide - 20}" y="{high - 6}" {END}>generated tokens; upwards: training accuracy</text>')
    for number, (arm, results) in enumerate(arms.items()):
        colour = COLOURS[number % len(COLOURS)]
        smooth = [smoothed(record["curve"]) for record in results.values()]
        drawn += [line(points, colour, 0.7, 0.35) for points in smooth]
        shortest = min(len(points) for points in smooth)
        mean = [tuple(map(fmean, zip(*(points[at] for points in smooth), strict=True))) for at in range(shortest)]
        drawn.append(line(((one, two) for one, two in mean), colour, 2.5, 1))
        text.append(f'<text x="{left + 12}" y="{30 + 18 * number}" fill="{colour}">{arm} ({len(results)} seeds)</text>')
    size = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    body = "\n".join([*drawn, *text])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


def smoothed(curve: Mapping[str, Sequence[float]], window: int = 5) -> list[tuple[float, float]]:
    """Return generated tokens and the mean accuracy of the last updates."""
    rewards = curve["reward"]
    return [(tokens, fmean(rewards[max(0, at + 1 - window) : at + 1])) for at, tokens in enumerate(curve["generated"])]


SEEDS = 12


def report(records: Sequence[Record]) -> str:
    """Return the tables of all parts that have results, in the order of PREREGISTRATION.md."""
    codes = sorted({record["code"] for record in records})
    seconds = sum(record["seconds"] + record["evaluation_seconds"] for record in records)
    found = [f"{len(records)} runs, {seconds / 3600:.1f} hours of one core; code: {'; '.join(codes)}"]
    parts = {part: by_arm(records, part) for part in sorted({record["cell"]["part"] for record in records})}
    if parts.keys() & PARTS.keys():
        left = [
            f"{arm} of {part} ({SEEDS - len(parts.get(part, {}).get(arm, ()))} seeds)"
            for part, names in PARTS.items()
            for arm in names
            if len(parts.get(part, {}).get(arm, ())) < SEEDS
        ]
        found += [f"\n**Not finished**, and not to be judged: without {', '.join(left)}."] if left else []
    for part, arms in parts.items():
        found += [f"\n## Part {part}\n", arm_table(arms)]
        if part == "d" and "chains" in parts.get("b", {}):
            found += ["", comparisons({"chains": parts["b"]["chains"], **arms}, DIVERSE)]
        elif part == "c" and set(PARTS["c"]) <= arms.keys():
            found += quarter(arms)
        elif {"chains", "tree_grpo"} <= arms.keys():
            found += ["", comparisons(arms, SECONDARY, PRIMARY)]
            found += [f"\nPrimary by imitation: {by_checkpoint(arms['tree_grpo'], arms['chains'])}."]
        if part == "b" and {"chains", "tree_grpo"} <= arms.keys():
            found += ["\nTraining accuracy, means over seeds; each interval is of 95 % by itself.\n"]
            found += [curve_table(arms, "tree_grpo", "chains")]
    return "\n".join(found) + "\n"


def questions_table(lines: Sequence[Record]) -> str:
    """Return what one budget buys at so many steps."""
    head = "| steps | rollouts | generated tokens of a question | questions | rollouts of a question | reuse | reward |"
    found = [head, "|---" * 7 + "|"]
    for one in sorted(lines, key=lambda one: one["steps"]):
        rollouts, strategy = one["rollouts"] / one["asked"], ", ".join(map(str, one["strategy"]))
        row = (one["steps"], strategy, f"{one['generated']:.0f}", f"{one['questions']:.0f}", f"{rollouts:.0f}")
        found.append("| " + " | ".join(map(str, (*row, f"{one['reuse']:.2f}", f"{one['reward']:.2f}"))) + " |")
    return "\n".join(found) + "\n"


def pilot_table(records: Sequence[Record]) -> str:
    """Return what the pilot is read for: tokens of an update beside those of chains, and accuracy by rate."""
    lines = [
        "| part | arm | rollouts | rate | seeds | updates | tokens of an update | of chains | area | greedy |",
        "|---" * 10 + "|",
    ]
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        cell = record["cell"]
        chained = {"chains": cell["size"], "quarter_chains": cell["size"] // 4}.get(cell["arm"])
        groups[cell["part"], cell["arm"], chained or tuple(cell["tree"]), cell["rate"]].append(record)
    chains = {
        (part, rate): fmean(map(tokens_of_update, found))
        for (part, arm, _, rate), found in groups.items()
        if arm == "chains"
    }
    for (part, arm, rollouts, rate), found in groups.items():
        tokens = fmean(map(tokens_of_update, found))
        updates = fmean(len(record["curve"]["generated"]) for record in found)
        under = fmean(figure({0: record}, "area")[0] for record in found) if part == "rates" else math.nan
        greedy = fmean(record["final"].get("greedy", math.nan) for record in found)
        share = tokens / chains[part, rate] if (part, rate) in chains else math.nan
        row = (part, arm, rollouts, f"{rate:g}", len(found), f"{updates:.1f}", f"{tokens:,.0f}", f"{share:.3f}")
        lines.append("| " + " | ".join(map(str, (*row, f"{under:.3f}", f"{greedy:.3f}"))).replace("nan", "") + " |")
    return "\n".join(lines) + "\n"


def tokens_of_update(record: Record) -> float:
    return float(record["curve"]["generated"][-1] / len(record["curve"]["generated"]))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/rl_tools"), help="folder (default: runs/rl_tools)")
    parser.add_argument("--results", type=Path, help="file of results (default: results.jsonl in that folder)")
    given = parser.parse_args(arguments)
    path = given.results or given.out / "results.jsonl"
    records = read(path)
    if not records:
        parser.error(f"{path} has no results yet")
    pilot = [record for record in records if record["cell"]["part"] in ("budgets", "rates")]
    found = [record for record in records if record not in pilot]
    given.out.mkdir(parents=True, exist_ok=True)
    if pilot:
        print(pilot_table(pilot))
    if found:
        text = report(found)
        if (asked := path.parent / "questions.jsonl").exists():
            text += (
                f"\n## Questions that fit one budget\n\n{questions_table(read(asked, 'steps', 'strategy', 'asked'))}"
            )
        print(text)
        (given.out / "report.md").write_text(text)
    for part in dict.fromkeys(record["cell"]["part"] for record in found):
        (given.out / f"curve-{part}.svg").write_text(drawing(by_arm(found, part)))


if __name__ == "__main__":
    main(sys.argv[1:])
