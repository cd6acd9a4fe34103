"""``trunkline probe``: what a server can do, as a table."""

from __future__ import annotations

import asyncio
from functools import partial

import click
import msgspec

from trunkline.cli.output import put
from trunkline.llm.probe import ABILITIES, Capabilities
from trunkline.llm.probe import probe as find_out
from trunkline.llm.spec import EndpointSpec
from trunkline.printable import printable

__all__ = ["probe"]

_WORDS = {True: "yes", False: "no", None: "did not show"}


@click.command()
@click.argument("url")
@click.option("--model", "-m", required=True, help="Model name, as the endpoint knows it.")
@click.option(
    "--api-key-env", default="OPENAI_API_KEY", show_default=True, metavar="NAME", help="Variable that holds the key."
)
@click.option("--timeout", default=60.0, show_default=True, help="Seconds one request may take.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def probe(url: str, model: str, api_key_env: str, timeout: float, as_json: bool) -> None:
    """Ask the server at URL, up to /v1, what it can do, with a dozen or two of small requests."""
    spec = EndpointSpec(url, api_key_env=api_key_env, timeout=timeout, max_retries=1)
    found = asyncio.run(find_out(partial(EndpointSpec.open, spec), model))
    if as_json:
        put(msgspec.json.encode(found).decode())
        return
    rows = _rows(found)
    width = max(len(label) for label, _ in rows)
    put("\n".join(f"{label:<{width}}  {value}" for label, value in rows))


def _rows(found: Capabilities) -> list[tuple[str, str]]:
    rows = [("server", printable(found.site)), ("model", printable(found.model))]
    return rows + [(text, _WORDS[getattr(found, name)]) for name, text in ABILITIES.items()]
