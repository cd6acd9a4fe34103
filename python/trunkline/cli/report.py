"""``trunkline report``: write what each try came to into a run that is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import click

from trunkline.cli.output import put, tell
from trunkline.errors import ConfigError
from trunkline.llm.request import Sampling
from trunkline.llm.spec import EndpointSpec
from trunkline.printable import printable
from trunkline.runtime.reporting import extract_run, report_run
from trunkline.score.reports.extract import LEAST, LIMIT
from trunkline.score.reports.reporter import Reporter
from trunkline.score.reports.sharing import CACHED

if TYPE_CHECKING:
    from trunkline.score.reports.outcome import Reported

__all__ = ["report"]

_REASONS = 3


@click.command()
@click.argument("run", type=click.Path())
@click.option("--model", "-m", metavar="NAME", help="Who writes the reports, by the name that the endpoint knows.")
@click.option(
    "--base-url", multiple=True, metavar="URL", help="Endpoint, up to /v1; repeatable.  [default: $OPENAI_BASE_URL]"
)
@click.option(
    "--api-key-env", default="OPENAI_API_KEY", show_default=True, metavar="NAME", help="Variable that holds the key."
)
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
@click.option("--timeout", default=600.0, show_default=True, help="Seconds one attempt of a request may take.")
@click.option("--max-retries", default=5, show_default=True, help="Retries of a request.")
@click.pass_context
def report(
    ctx: click.Context,
    run: str,
    model: str | None,
    base_url: tuple[str, ...],
    api_key_env: str,
    extract: bool,
    per_leaf: bool,
    cached: float,
    again: bool,
    words: int,
    limit: int,
    temperature: float | None,
    max_tokens: int | None,
    seed: int,
    max_concurrency: int,
    timeout: float,
    max_retries: int,
) -> None:
    """Write reports into RUN: for each try its plan, the calls that mattered, its reasoning and its answer.

    What tries share is reported once, where that costs less. Interrupted, it goes on when it is called again.
    """
    if extract:
        if model is not None or base_url or per_leaf:
            raise ConfigError("--extract asks no model: leave out --model, --base-url and --per-leaf")
        found = extract_run(run, limit=limit, again=again)
    else:
        if model is None:
            raise ConfigError("--model is missing: who writes the reports? Or give --extract to do without a model")
        llm = EndpointSpec(
            *base_url,
            api_key_env=api_key_env,
            max_concurrency=max_concurrency,
            timeout=timeout,
            max_retries=max_retries,
        )
        reporter = Reporter(
            llm,
            model,
            sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
            seed=seed,
            share="never" if per_leaf else "auto",
            words=words,
            cached=cached,
            again=again,
        )
        tell(f"reports on {printable(run)} by {printable(model, 60)}")
        found = asyncio.run(_write(run, reporter))
    put(_text(run, found))
    # Of a try that said nothing there is nothing to extract, however often it is asked for.
    ctx.exit(1 if found.problems and not found.written and not extract else 0)


async def _write(run: str, reporter: Reporter) -> Reported:
    try:
        return await report_run(run, reporter)
    finally:
        await reporter.close()


def _text(run: str, found: Reported) -> str:
    """What came of it, for people."""
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
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in rows)
