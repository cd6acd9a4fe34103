"""``trunkline answers``: one answer a task out of what its tries answered."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from trunkline.cli.named import make_named
from trunkline.cli.output import put
from trunkline.errors import ConfigError, LLMError, TrunklineError
from trunkline.llm.spec import EndpointSpec
from trunkline.printable import cells, printable, said
from trunkline.score.aggregators.aggregate import aggregate, check_aggregator
from trunkline.score.aggregators.aggregator import Aggregator, Decision
from trunkline.score.aggregators.catalog import AGGREGATORS
from trunkline.score.aggregators.clusters import key_of
from trunkline.score.aggregators.picking import Picker
from trunkline.score.confidence import CONFIDENCES
from trunkline.score.metrics import Estimate, accuracy
from trunkline.store.reader import RunReader
from trunkline.types import UNSCORED, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline.tree.tree import Tree

__all__ = ["Answered", "answers", "answers_of"]

_AT_ONCE: Final = 64
"""Tasks that are decided at once, where a model is asked."""

_TASK, _ANSWER, _WHY = 24, 60, 300  # cells


class Answered(msgspec.Struct, frozen=True):
    """The answer of one task.

    Attributes:
        task: The task's id.
        answer: The answer; None where no try gave one.
        votes: How many tries gave it.
        voters: How many tries gave any answer.
        correct: Whether it is an accepted one; None where there is none, or nothing to compare with it.
        decision: How it came about.
        failed: Whether the aggregator failed.
    """

    task: str
    answer: str | None
    votes: int
    voters: int
    correct: bool | None
    decision: Decision
    failed: bool = False

    def row(self) -> dict[str, Any]:
        """The fields as JSON has them, with the evidence."""
        row: dict[str, Any] = {
            "task": self.task,
            "answer": self.answer,
            "votes": self.votes,
            "voters": self.voters,
            "correct": self.correct,
            "failed": self.failed,
        }
        evidence: dict[str, Any] = msgspec.to_builtins(self.decision)
        evidence.pop("answer")
        return row | evidence | {"usage": msgspec.structs.asdict(self.decision.usage)}


async def answers_of(trees: Iterable[Tree], aggregator: Aggregator, by: str) -> list[Answered]:
    """Decide the answer of each tree, several at once, in their order.

    Args:
        trees: The trees; as many as are decided at once are in memory.
        aggregator: What decides. Where it fails, a task has no answer and the others go on.
        by: Where confidences come from.

    Raises:
        EndpointError: The aggregator asks a model whose endpoint serves nobody.
    """
    found: list[Answered] = []
    waiting: deque[asyncio.Task[Answered]] = deque()
    try:
        for tree in trees:
            waiting.append(asyncio.create_task(_answered(tree, aggregator, by)))
            if len(waiting) >= _AT_ONCE:
                found.append(await waiting[0])
                waiting.popleft()
        while waiting:
            found.append(await waiting[0])
            waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return found


async def _answered(tree: Tree, aggregator: Aggregator, by: str) -> Answered:
    try:
        decision, failed = await aggregate(tree, aggregator, by=by), False
    except LLMError as problem:
        decision, failed = Decision(answer=None, why=said(problem)), True
    except TrunklineError:
        raise
    except Exception as problem:  # noqa: BLE001 - an aggregator, and what it asks, may be anybody's code
        decision, failed = Decision(answer=None, why=printable(f"{type(problem).__name__}: {said(problem)}", 300)), True
    voters = sum(len(party.voters) for party in decision.parties)
    correct = None if failed else _correct(tree, decision.answer)
    return Answered(tree.task.id, decision.answer, len(decision.voters), voters, correct, decision, failed)


def _correct(tree: Tree, answer: str | None) -> bool | None:
    """Whether an answer is an accepted one; no answer is none, but where every try broke nothing was measured."""
    # As the votes were counted: which spelling of a number was chosen must make no difference.
    accepted = {key_of(reference) for reference in tree.task.reference}
    tried = any((ended := one.termination) is not None and ended not in UNSCORED for one in tree.rollouts)
    if not accepted or not tried:
        return None
    return answer is not None and key_of(answer) in accepted


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--aggregator",
    "-a",
    default="majority",
    show_default=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help=f"What decides: {', '.join(AGGREGATORS)}, or your own MODULE:CLASS.",
)
@click.option(
    "--by",
    default="logprob",
    show_default=True,
    type=click.Choice(list(CONFIDENCES)),
    help="What says how sure a try is, where the aggregator weighs by confidence.",
)
@click.option("--model", "-m", help="Model that the aggregator asks, as its endpoint knows it.")
@click.option(
    "--base-url", multiple=True, metavar="URL", help="Its endpoint, up to /v1; repeatable.  [default: $OPENAI_BASE_URL]"
)
@click.option(
    "--api-key-env", default="OPENAI_API_KEY", show_default=True, metavar="NAME", help="Variable that holds the key."
)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds one attempt of a model call may take.")
@click.option("--out", metavar="FILE", help="Write the answers with their evidence here, as JSON lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def answers(
    ctx: click.Context,
    run: str,
    aggregator: str,
    by: str,
    model: str | None,
    base_url: tuple[str, ...],
    api_key_env: str,
    timeout: float,
    out: str | None,
    as_json: bool,
) -> None:
    """Make one answer of each finished task of RUN out of what its tries answered, and print it.

    Nothing in RUN is changed. synthesis and integrate ask a model, which --model names; a task whose tries all agree
    costs no call.
    """
    target = None if out is None else _target(out)
    spec = EndpointSpec(*base_url, api_key_env=api_key_env, timeout=timeout) if model is not None else None
    if spec is None and base_url:
        raise ConfigError("--base-url is of the model that an aggregator asks: name it with --model")
    ours = AGGREGATORS.get(aggregator.partition(":")[0])
    if spec is not None and ours is not None and not issubclass(ours, Picker):
        raise ConfigError(f"--model: --aggregator {aggregator} asks no model; synthesis and integrate do")
    with RunReader.open(run) as reader:
        found = asyncio.run(_decided(reader, aggregator, by, spec, model))
    if target is not None:
        _write(target, found)
    measured = accuracy([[math.nan if one.correct is None else float(one.correct)] for one in found])
    spent = sum((one.decision.usage for one in found), Usage())
    if as_json:
        data: dict[str, Any] = {"run": run, "aggregator": aggregator, "by": by, "answers": [one.row() for one in found]}
        data |= {"accuracy": measured, "usage": msgspec.structs.asdict(spent)}
        put(_ascii(data))
    elif target is None:
        put(_table(found))
    if not as_json:
        put(_summary(found, measured, spent, target))
    if any(one.failed for one in found):
        ctx.exit(1)


async def _decided(
    reader: RunReader, given: str, by: str, spec: EndpointSpec | None, model: str | None
) -> list[Answered]:
    """Decide all tasks, with one client for all of them."""
    llm = None if spec is None else spec.open()
    try:

        def beside(kind: type) -> Mapping[str, Any]:
            if llm is not None:
                return {"llm": llm, "model": model}
            if issubclass(kind, Picker):
                raise ConfigError(f"--aggregator {given}: it asks a model: name it with --model")
            return {}

        made = make_named(given, "--aggregator", AGGREGATORS, AGGREGATORS.__getitem__, beside)
        return await answers_of(reader.trees(), check_aggregator("--aggregator", made), by)
    finally:
        if llm is not None:
            await llm.close()


def _target(out: str) -> Path:
    path = Path(out)
    if not out or path.is_dir():
        raise ConfigError(f"--out {printable(out) or 'is empty'}: name a file")
    if path.exists():
        raise ConfigError(f"--out {printable(out)} exists: name another file, or remove it")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {printable(out)}: there is no folder {printable(str(path.parent))}")
    return path


def _write(path: Path, found: Iterable[Answered]) -> None:
    """Write JSON lines, all or none of them."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(b"".join(msgspec.json.encode(one.row()) + b"\n" for one in found))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _ascii(data: object) -> str:
    import json

    # Everything beyond ASCII is escaped, so that no control character of any kind reaches a terminal.
    return json.dumps(msgspec.json.decode(msgspec.json.encode(data)), indent=2)


def _table(found: Iterable[Answered]) -> str:
    rows = [("task", "answer", "votes", "")]
    for one in found:
        answer = "-" if one.answer is None else printable(one.answer, _ANSWER)
        note = "tied" if one.decision.tied else ""
        note = f"failed: {printable(one.decision.why, _WHY)}" if one.failed else note
        rows.append((printable(one.task, _TASK), answer, f"{one.votes}/{one.voters}", note))
    widths = [max(cells(row[column]) for row in rows) for column in range(3)]
    lines = []
    for task, answer, votes, note in rows:
        left, middle = (text + " " * (width - cells(text)) for text, width in zip((task, answer), widths, strict=False))
        lines.append(f"{left}  {middle}  {votes:>{widths[2]}}  {note}".rstrip())
    return "\n".join(lines)


def _summary(found: list[Answered], measured: Estimate | None, spent: Usage, target: Path | None) -> str:
    answered = sum(one.answer is not None for one in found)
    tied = sum(one.decision.tied for one in found)
    lines = [f"answers   {answered:,} of {len(found):,} tasks, {tied:,} tied"]
    if measured is not None:
        span = "" if measured.low is None else f" (95 %: {measured.low:.3f} to {measured.high:.3f})"
        lines.append(f"accuracy  {measured.value:.3f}{span} of {measured.tasks:,} tasks with accepted answers")
    for name, said_of in (
        ("fallback", [one.decision.why for one in found if one.decision.fallback]),
        ("failed", [one.decision.why for one in found if one.failed]),
    ):
        if said_of:
            (why, often), *others = Counter(said_of).most_common(2)
            more = f" ({often:,} times; others say why in --out)" if others else ""
            lines.append(f"{name:<10}{len(said_of):,} tasks: {printable(why, _WHY)}{more}")
    if spent.calls:
        lines.append(
            f"model     {spent.calls:,} calls, {spent.prompt:,} prompt and {spent.generated:,} generated tokens"
        )
    if target is not None:
        lines.append(f"written   {printable(str(target))}")
    return "\n".join(lines)
