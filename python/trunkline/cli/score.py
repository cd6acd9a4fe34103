"""``trunkline score``: score a finished run again, by another reward."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.output import put, tell
from trunkline.cli.rewards import read_rewards, reward_option
from trunkline.errors import ConfigError
from trunkline.printable import printable
from trunkline.runtime.job import reward_name
from trunkline.runtime.rescoring import Rescored, rescore

if TYPE_CHECKING:
    from trunkline.score.metrics import Estimate

__all__ = ["score"]


@click.command()
@click.argument("run", type=click.Path())
@reward_option(default="", required=True)
@click.option("--out", "-o", metavar="FILE", help="Score a copy.  [default: RUN itself is changed]")
@click.option("--keep-verdicts", is_flag=True, help="Leave what the run's filters said as it is.")
@click.option("--anew", is_flag=True, help="Begin anew where the same reward was interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def score(
    ctx: click.Context,
    run: str,
    rewards: tuple[str, ...],
    out: str | None,
    keep_verdicts: bool,
    anew: bool,
    as_json: bool,
) -> None:
    """Ask another reward about every finished try of RUN; nothing is generated.

    Interrupted, it goes on when it is called again. The earlier rewards stay in the notes of the tries. The run's
    filters judge again; where it has any, code that RUN names is imported: only for files that you trust.
    """
    reward = read_rewards(rewards)
    if reward is None:
        raise ConfigError("--reward none scores nothing: name a reward")
    tell(f"scores {printable(run if out is None else out)} by {printable(reward_name(reward), 80)}")
    found = rescore(run, reward, out=out, keep_verdicts=keep_verdicts, anew=anew)
    if as_json:
        put(json.dumps(msgspec.to_builtins(found, enc_hook=str), indent=2))
    else:
        put(_text(found))
    ctx.exit(1 if found.rollouts and found.unscored == found.rollouts else 0)


def _text(found: Rescored) -> str:
    """What came of it, for people."""
    before = "none" if found.before is None else printable(found.before, 60)
    rows = [
        ("run file", printable(str(found.path))),
        ("reward", f"{printable(found.reward, 60)}  (before: {before})"),
        ("accuracy before", _accuracy(found.old)),
        ("accuracy now", _accuracy(found.new)),
        ("changed", f"{found.changed:,} of {found.rollouts:,} rollouts"),
    ]
    if found.unscored:
        rows.append(("unscored", f"{found.unscored:,} of {found.rollouts:,} rollouts"))
        rows += [("", f"{count:,}: {why}") for why, count in found.reasons]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def _accuracy(estimate: Estimate | None) -> str:
    """An accuracy with its interval, as the summary of a run has it."""
    if estimate is None:
        return "nothing is scored"
    ends = [end for end in (estimate.value, estimate.low, estimate.high) if end is not None]
    # Rewards need not be shares; only those between 0 and 1 are read as per cent.
    shares = all(0 <= end <= 1 for end in ends)
    said: list[Any] = [f"{end * 100:.1f}" if shares else f"{end:.3f}" for end in ends]
    text = f"{said[0]} %" if shares else said[0]
    return f"{text}  (95 %: {said[1]} to {said[2]})" if len(said) == 3 else text
