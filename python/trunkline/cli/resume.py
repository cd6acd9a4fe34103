"""``trunkline resume``: go on with a run that was stopped, or killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from trunkline.cli.drive import drive
from trunkline.cli.llms import changed_llms
from trunkline.cli.options import BudgetOption, PriceOption, Threshold
from trunkline.cli.runfile import standing
from trunkline.cli.watching import watching_options
from trunkline.errors import ConfigError
from trunkline.llm.limits import Limits
from trunkline.llm.names import MAIN, there_is
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.stored import stored_job
from trunkline.store.reader import RunReader

if TYPE_CHECKING:
    from trunkline.runtime.job import Job

__all__ = ["resume"]

_OF_MAIN: Final = ("base_url", "api_key_env", "max_concurrency", "rpm", "tpm", "timeout", "max_retries", "price")


@click.command()
@click.argument("run", type=click.Path())
@click.option("--workers", "-w", type=int, help="Worker processes; 0 stays in this one.  [default: as before]")
@click.option("--base-url", multiple=True, metavar="URL", help="Endpoint, up to /v1; repeatable.  [default: as before]")
@click.option("--llm", "llms", multiple=True, metavar="NAME=[URL][,OPTION=VALUE,...]", help="What is other of an LLM.")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key.  [default: as before]")
@click.option("--max-concurrency", "-c", type=int, help="Requests in flight, in all.  [default: as before]")
@click.option("--rpm", type=float, help="Requests a minute, in all.  [default: as before]")
@click.option("--tpm", type=float, help="Tokens a minute, in all.  [default: as before]")
@click.option("--timeout", type=float, help="Seconds one attempt of a model call may take.  [default: as before]")
@click.option("--max-retries", type=int, help="Retries of a model call.  [default: as before]")
@click.option(
    "--price", type=PriceOption(), metavar="prompt=P,generated=G[,cached=C]", help="What a million tokens cost."
)
@click.option(
    "--budget", type=BudgetOption(), metavar="WHAT=N,...", help="The most the run may spend.  [default: as before]"
)
@click.option("--durable/--no-durable", default=None, help="Sync every commit to the disk.  [default: as before]")
@click.option(
    "--fail-on-error",
    type=Threshold(),
    metavar="N|0.x",
    default=0.0,
    help="Broken rollouts allowed: a count, or a share.  [default: 0]",
)
@watching_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.pass_context
def resume(ctx: click.Context, /, run: str, **given: Any) -> None:
    """Go on with RUN: what is finished is not run again, what is unfinished goes on from its last turn.

    Imports the code that RUN names, from the folders that it names: only for files that you trust.
    """
    path = Path(run).absolute()
    with RunReader.open(path) as reader:
        meta, settings = reader.meta, reader.settings
    job, stored = stored_job(path, meta)
    said = standing(path, resume=True)
    options: dict[str, Any] = {
        **_of_job(job),
        **_of_file(settings),
        "llm": _endpoints(job, given),
        "budget": given["budget"] or job.budget,
        "workers": stored.workers if given["workers"] is None else given["workers"],
        "durable": stored.durable if given["durable"] is None else given["durable"],
        "out": path,
        "resume": True,
    }
    threshold, as_json = given["fail_on_error"], given["as_json"]
    ctx.exit(drive(job.agent, None, threshold=threshold, watched=given, as_json=as_json, said=said, **options))


def _of_job(job: Job) -> dict[str, Any]:
    """Return the options that a job is made of."""
    stopping = msgspec.structs.asdict(job.stopping)
    same = ("strategy", "reward", "seed", "cache", "filters", "task_budget", "program", "weights")
    return {name: getattr(job, name) for name in same} | stopping


def _of_file(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options that only the settings hold."""
    refill, continues = settings.get("refill") or {}, settings.get("continues") or {}
    return {"labels": settings.get("labels"), "start_from": continues.get("run"), **refill}


def _endpoints(job: Job, given: dict[str, Any]) -> dict[str, EndpointSpec]:
    """Return the LLMs, with what is other now."""
    llms = {name: llm for name, llm in job.llms.items() if isinstance(llm, EndpointSpec)}
    main = llms.pop(MAIN, None)
    others = changed_llms(llms, given["llms"])
    if main is not None:
        return {MAIN: _main(main, given), **others}
    for option in _OF_MAIN:
        if given[option] not in (None, ()):
            raise ConfigError(
                f"--{option.replace('_', '-')} is of an LLM without a name; the run has {there_is(others)}"
            )
    return others


def _main(llm: EndpointSpec, given: dict[str, Any]) -> EndpointSpec:
    """Return the LLM without a name, with what is other now."""
    changed: dict[str, Any] = {
        name: given[name]
        for name in ("api_key_env", "max_concurrency", "timeout", "max_retries", "price")
        if given[name] is not None
    }
    if given["base_url"]:
        changed["base_urls"] = given["base_url"]
    rates = {"requests_per_minute": given["rpm"], "tokens_per_minute": given["tpm"]}
    told = {name: rate for name, rate in rates.items() if rate is not None}
    if told:
        changed["limits"] = Limits(**(msgspec.structs.asdict(llm.limits) | told))
    return msgspec.structs.replace(llm, **changed)
