"""The commands ``score``, ``report``, ``answers`` and ``export``."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from click.core import ParameterSource

from trunkline._internal.text import counted, describe_error, format_error, printable
from trunkline.cli.options import API_KEY_ENV, BASE_URL, MAX_RETRIES, TIMEOUT, reward_option
from trunkline.cli.output import put, silence, tell, write_json
from trunkline.cli.tables import chosen_tries, grid, labelled, share
from trunkline.errors import ConfigError, LLMError, TrunklineError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.runner.amend import Rescored, extract_run, report_run, rescore
from trunkline.scoring.aggregators.aggregate import AGGREGATORS, aggregate, check_aggregator
from trunkline.scoring.aggregators.base import Aggregator, Decision
from trunkline.scoring.aggregators.llm import Picker
from trunkline.scoring.aggregators.voting import key_of
from trunkline.scoring.confidence import CONFIDENCES
from trunkline.scoring.metrics import Estimate, accuracy
from trunkline.scoring.reports.extractive import LEAST, LIMIT
from trunkline.scoring.reports.reporter import Reporter
from trunkline.scoring.reports.segments import CACHED
from trunkline.scoring.rewards.base import full_name
from trunkline.scoring.rewards.reading import read_rewards
from trunkline.store.export.export import NAMES
from trunkline.store.export.export import export as write
from trunkline.store.export.tables import LEVELS
from trunkline.store.export.target import STDOUT
from trunkline.store.reader import RunReader
from trunkline.types import UNSCORED, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline.scoring.reports.extractive import Reported
    from trunkline.store.export.export import Exported
    from trunkline.tree.views import Tree


@click.command()
@click.argument("run", type=click.Path())
@reward_option(default="", required=True)
@click.option("--out", "-o", metavar="FILE", help="Score a copy.  [default: RUN itself is changed]")
@click.option("--keep-verdicts", is_flag=True, help="Leave what the run's filters said as it is.")
@click.option("--anew", is_flag=True, help="Begin anew where the same reward was interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def score(ctx: click.Context, /, run: str, **given: Any) -> None:
    """Ask another reward about every finished try of RUN; nothing is generated.

    Interrupted, it continues when it is called again. The earlier rewards stay in the notes of the tries. The run's
    filters judge again; where it has any, code that RUN names is imported: only for files that you trust.
    """
    reward = read_rewards(given["rewards"], "--reward")
    if reward is None:
        raise ConfigError("--reward none scores nothing: name a reward")
    out = given["out"]
    tell(f"scores {printable(run if out is None else out)} by {printable(full_name(reward), 80)}")
    found = rescore(run, reward, out=out, keep_verdicts=given["keep_verdicts"], anew=given["anew"])
    if given["as_json"]:
        put(json.dumps(msgspec.to_builtins(found, enc_hook=str), indent=2))
    else:
        put(_score_text(found))
    ctx.exit(1 if found.rollouts and found.unscored == found.rollouts else 0)


def _score_text(found: Rescored) -> str:
    before = "none" if found.before is None else printable(found.before, 60)
    rows = [
        ("run file", printable(str(found.path))),
        ("reward", f"{printable(found.reward, 60)}  (before: {before})"),
        ("accuracy before", share(found.old, "nothing is scored")),
        ("accuracy now", share(found.new, "nothing is scored")),
        ("changed", f"{found.changed:,} of {found.rollouts:,} rollouts"),
    ]
    if found.unscored:
        rows.append(("unscored", f"{found.unscored:,} of {found.rollouts:,} rollouts"))
        rows += [("", f"{count:,}: {why}") for why, count in found.reasons]
    return labelled(rows)


_REASONS = 3


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--model", "-m", metavar="NAME", help="Model that writes the reports, by the name that the endpoint knows."
)
@BASE_URL
@API_KEY_ENV
@click.option("--extract", is_flag=True, help="Ask no model: put together what each try itself says.")
@click.option(
    "--per-leaf", is_flag=True, help="Write each report from scratch, and share nothing that tries have in common."
)
@click.option(
    "--cached",
    type=float,
    default=CACHED,
    show_default=True,
    metavar="SHARE",
    help="What a prompt token costs that the endpoint has cached, of one that it has not; 1 if it caches nothing. The "
    "dearer, the more is shared.",
)
@click.option("--again", is_flag=True, help="Write anew what has a report.")
@click.option("--words", default=150, show_default=True, help="Most words of a report.")
@click.option(
    "--limit",
    type=click.IntRange(LEAST),
    default=LIMIT,
    show_default=True,
    help="Most characters of a report, with --extract.",
)
@click.option("--temperature", type=float, help="Sampling temperature.  [default: the server's]")
@click.option("--max-tokens", type=int, help="Most tokens of a reply, thinking included.  [default: the server's]")
@click.option("--seed", default=0, show_default=True, help="Seed of what is asked.")
@click.option("--max-concurrency", "-j", default=64, show_default=True, help="Most requests in flight at once.")
@TIMEOUT
@MAX_RETRIES
@click.pass_context
def report(ctx: click.Context, /, run: str, **given: Any) -> None:
    """Write reports into RUN: for each try its plan, the calls that mattered, its reasoning and its answer.

    What tries share is reported once, where that costs less. Interrupted, it continues when it is called again.
    """
    model, extract, again = given["model"], given["extract"], given["again"]
    if extract:
        if model is not None or given["base_url"] or given["per_leaf"]:
            raise ConfigError("--extract asks no model: leave out --model, --base-url and --per-leaf")
        found = extract_run(run, limit=given["limit"], again=again)
    else:
        if model is None:
            raise ConfigError(
                "--model is missing: name the model that writes the reports, or give --extract to do without one"
            )
        asked = {name: given[name] for name in ("api_key_env", "max_concurrency", "timeout", "max_retries")}
        reporter = Reporter(
            LLM(*given["base_url"], **asked),
            model,
            sampling=Sampling(temperature=given["temperature"], max_tokens=given["max_tokens"]),
            seed=given["seed"],
            share="never" if given["per_leaf"] else "auto",
            words=given["words"],
            cached=given["cached"],
            again=again,
        )
        tell(f"reports on {printable(run)} by {printable(model, 60)}")
        found = asyncio.run(_write_reports(run, reporter))
    put(_report_text(run, found))
    # A try that said nothing has nothing to extract, however often it is asked for.
    ctx.exit(1 if found.problems and not found.written and not extract else 0)


async def _write_reports(run: str, reporter: Reporter) -> Reported:
    try:
        return await report_run(run, reporter)
    finally:
        await reporter.close()


def _report_text(run: str, found: Reported) -> str:
    rows = [("run file", printable(run)), ("reports", f"{found.written:,} written, {found.skipped:,} there before")]
    if found.problems:
        rows.append(("not written", f"{found.failed:,}"))
        reasons = Counter(printable(problem.reason, 200) for problem in found.problems)
        rows += [("", f"{count:,}: {why}") for why, count in reasons.most_common(_REASONS)]
    usage = found.usage
    if usage.calls:
        rows.append(("calls", f"{usage.calls:,}"))
        cached = f", {usage.cached:,} of them cached" if usage.cached else ""
        rows.append(("prompt", f"{usage.prompt:,} tokens{cached}"))
        rows.append(("generated", f"{usage.generated:,} tokens"))
    if usage.unreported:
        rows.append(("unreported", f"{usage.unreported:,} calls, whose tokens are in no figure"))
    return labelled(rows)


_AT_ONCE: Final = 64
"""The most tasks that are decided at once."""

_TASK, _ANSWER, _WHY = 24, 60, 300  # cells


class TaskAnswer(msgspec.Struct, frozen=True):
    """The answer of one task."""

    task: str  # the task's id
    answer: str | None  # the answer; None where no try gave one
    votes: int  # tries that gave it
    voters: int  # tries that gave any answer
    correct: bool | None  # whether it is a reference answer; None without reference answers, or where every try broke
    decision: Decision  # the aggregator's decision with its evidence
    failed: bool = False  # whether the aggregator failed

    def row(self) -> dict[str, Any]:
        """The fields as JSON has them, with the evidence."""
        row: dict[str, Any] = msgspec.structs.asdict(self)
        evidence: dict[str, Any] = msgspec.to_builtins(row.pop("decision"))
        evidence.pop("answer")
        return row | evidence | {"usage": msgspec.structs.asdict(self.decision.usage)}


async def answers_of(trees: Iterable[Tree], aggregator: Aggregator, by: str) -> list[TaskAnswer]:
    """Decide the answer of each tree, several at once, in the order of the trees."""
    found: list[TaskAnswer] = []
    waiting: deque[asyncio.Task[TaskAnswer]] = deque()
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


async def _answered(tree: Tree, aggregator: Aggregator, by: str) -> TaskAnswer:
    try:
        decision, failed = await aggregate(tree, aggregator, by=by), False
    except LLMError as problem:
        decision, failed = Decision(answer=None, why=format_error(problem)), True
    except TrunklineError:
        raise
    except Exception as problem:  # noqa: BLE001 - an aggregator may be user code
        decision, failed = Decision(answer=None, why=printable(describe_error(problem), 300)), True
    voters = sum(len(party.voters) for party in decision.parties)
    correct = None if failed else _correct(tree, decision.answer)
    return TaskAnswer(tree.task.id, decision.answer, len(decision.voters), voters, correct, decision, failed)


def _correct(tree: Tree, answer: str | None) -> bool | None:
    """Whether an answer is a reference answer, spelled as votes are counted; None where nothing was measured."""
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
    help=f"What decides: {AGGREGATORS}, or your own MODULE:CLASS.",
)
@click.option(
    "--by",
    default="logprob",
    show_default=True,
    type=click.Choice(list(CONFIDENCES)),
    help="What says how sure a try is, where the aggregator weighs by confidence; logprob needs token ids (--tokens), "
    "entropy --top-logprobs.",
)
@click.option("--model", "-m", help="Model that the aggregator asks, as its endpoint knows it.")
@BASE_URL
@API_KEY_ENV
@TIMEOUT
@click.option("--out", metavar="FILE", help="Write the answers with their evidence here, as JSON lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def answers(ctx: click.Context, /, run: str, **given: Any) -> None:
    """Make one answer of each finished task of RUN out of what its tries answered, and print it.

    Nothing in RUN is changed. synthesis and integrate ask a model, which --model names; a task whose tries all agree
    costs no call.
    """
    aggregator, by, model, as_json = given["aggregator"], given["by"], given["model"], given["as_json"]
    target = None if given["out"] is None else _target(given["out"])
    urls, endpoint = given["base_url"], {name: given[name] for name in ("api_key_env", "timeout")}
    spec = None if model is None else LLM(*urls, **endpoint)
    if spec is None and urls:
        raise ConfigError("--base-url is of the model that an aggregator asks: name it with --model")
    ours = AGGREGATORS.get(aggregator.partition(":")[0])
    if spec is not None and ours is not None and not issubclass(ours, Picker):
        raise ConfigError(f"--model: --aggregator {aggregator} asks no model; synthesis and integrate do")
    with RunReader.open(run) as reader:
        found, weighs = asyncio.run(_decided(reader, aggregator, by, spec, model))
        source = by if weighs == "confidence" else weighs
        reward = reader.settings.get("reward") if source in {"reward", "value"} else None
        labels = str(reward) if reward and any(task.reference for task in reader.tasks()) else ""
    if target is not None:
        _write_answers(target, found)
    measured = accuracy([[math.nan if one.correct is None else float(one.correct)] for one in found])
    spent = sum((one.decision.usage for one in found), Usage())
    if as_json:
        data: dict[str, Any] = {"run": run, "aggregator": aggregator, "by": by, "answers": [one.row() for one in found]}
        data |= {"accuracy": measured, "usage": msgspec.structs.asdict(spent), "reads_reference": bool(labels)}
        write_json(data)
    elif target is None:
        put(_table(found))
    if not as_json:
        put(_summary(found, measured, spent, target))
        if labels:
            put(
                f"labels    {source} comes from the run's reward ({printable(labels, 60)}), which had the reference "
                "answers at hand: if it read them, this accuracy is not to be had without them"
            )
        if weighs != "confidence" and ctx.get_parameter_source("by") is not ParameterSource.DEFAULT:
            what = "counts votes alike" if weighs is None else f"goes by the {weighs}"
            put(f"unused    --by {by}: {printable(aggregator, 60)} {what}")
    if any(one.failed for one in found):
        ctx.exit(1)


async def _decided(
    reader: RunReader, given: str, by: str, spec: LLM | None, model: str | None
) -> tuple[list[TaskAnswer], str | None]:
    """Decide all tasks with one client; also return the name of the number of a try that the aggregator weighs."""
    llm = None if spec is None else spec.open()
    try:

        def beside(kind: type) -> Mapping[str, Any]:
            if llm is not None:
                return {"llm": llm, "model": model}
            if issubclass(kind, Picker):
                raise ConfigError(f"--aggregator {given}: it asks a model: name it with --model")
            return {}

        made = AGGREGATORS.make(given, "--aggregator", beside)
        found = await answers_of(reader.trees(), check_aggregator("--aggregator", made), by)
        return found, getattr(made, "by", None)
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


def _write_answers(path: Path, found: Iterable[TaskAnswer]) -> None:
    """Write JSON lines, all or none of them."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(b"".join(msgspec.json.encode(one.row()) + b"\n" for one in found))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _table(found: Iterable[TaskAnswer]) -> str:
    rows = [("task", "answer", "votes", "")]
    for one in found:
        answer = "-" if one.answer is None else printable(one.answer, _ANSWER)
        note = "tied" if one.decision.tied else ""
        note = f"failed: {printable(one.decision.why, _WHY)}" if one.failed else note
        rows.append((printable(one.task, _TASK), answer, f"{one.votes}/{one.voters}", note))
    return grid(rows, (0, 1, 3))


def _summary(found: list[TaskAnswer], measured: Estimate | None, spent: Usage, target: Path | None) -> str:
    answered = sum(one.answer is not None for one in found)
    tied = sum(one.decision.tied for one in found)
    lines = [f"answers   {answered:,} of {len(found):,} tasks, {tied:,} tied"]
    if measured is not None:
        span = "" if measured.low is None else f" (95 %: {measured.low:.3f} to {measured.high:.3f})"
        lines.append(f"accuracy  {measured.value:.3f}{span} of {measured.tasks:,} tasks with reference answers")
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


_EPILOG = """\b
Formats:
  messages      JSON lines of chat messages, for fine-tuning and for reading
  parallelmuse  JSON lines as ParallelMuse's scripts have them
  parquet       typed columns (extra: parquet)
  csv           a table for spreadsheets
  Others may come with installed packages (entry points of the group trunkline.exporters).

\b
With --level, parquet and csv are tables with a row for each task, rollout, model turn or request."""


def summary_line(found: Exported, where: str) -> str:
    """What was written to a file or standard output, and what was left out and why, in one line."""
    place = "" if where == STDOUT else f" to {where}"
    kind = "record" if found.level is None else found.level
    of = "" if kind == "task" else f" of {counted(found.tasks, 'task')}"
    line = f"wrote {counted(found.records, kind)}{of}{place} as {found.format}"
    if found.level is None and found.rollouts != found.records:
        line += f", which stand for {counted(found.rollouts, 'rollout')}"
    if found.left_out:
        total = sum(found.left_out.values())
        reasons = ", ".join(f"{number:,} {why}" for why, number in found.left_out.items())
        line += f"; left out {counted(total, 'rollout')}: {reasons}"
    if found.chosen:
        line += f"; {chosen_tries(found.chosen)}"
    return line


@click.command(epilog=_EPILOG)
@click.argument("run", type=click.Path())
@click.option(
    "--format",
    "-f",
    metavar="FORMAT",
    help="What to write.  [default: what the name of the file says; messages for .jsonl]",
)
@click.option("--level", type=click.Choice(list(LEVELS)), help="A table of these.  [default: rollout for csv]")
@click.option("--out", "-o", default=STDOUT, type=click.Path(), help="The file.  [default: -, standard output]")
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Only this task; repeatable.")
@click.option("--ended", is_flag=True, help="Leave out rollouts that still grow.")
@click.option("--scored", is_flag=True, help="Leave out rollouts without a reward.")
@click.option("--min-reward", type=float, metavar="R", help="Leave out rollouts without a reward of at least R.")
@click.option("--only", multiple=True, metavar="FIELD", help="Only this field of each record; repeatable.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def export(run: str, **given: Any) -> None:
    """Write the rollouts of RUN for other programs: a record for each, with its weight where several are the same."""
    out = given["out"]
    if given["format"] is None and out == STDOUT:
        raise ConfigError(f"name a file with --out, or a --format: {', '.join(NAMES)}")
    try:
        found = write(run, **given)
    except BrokenPipeError:
        # The reader has what it wanted, as `| head` does.
        silence()
        return
    tell(summary_line(found, out))
