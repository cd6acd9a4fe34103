"""``python -m trunkline.sim.server``: prints one line, the base URL, when it serves."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.errors import ConfigError, TrunklineError
from trunkline.sim.model.dials import PRESETS
from trunkline.sim.server.latency import Latency
from trunkline.sim.server.process import serve
from trunkline.sim.server.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server from the command line.

    Args:
        arguments: The arguments; those of the process when not given.

    Returns:
        The exit code: 0 after a signal, 2 for a wrong option, 3 when the address cannot be bound.
    """
    asked = _parser().parse_args(arguments)
    try:
        serve(_settings(asked), host=asked.host, port=asked.port, exit_with_parent=asked.exit_with_parent)
    except TrunklineError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trunkline.sim.server", description="Serve the simulated models over HTTP."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to bind; the default is reachable from this machine only")
    add("--port", type=int, default=0, help="port; 0 takes a free one")
    add("--preset", default="default", choices=list(PRESETS), help="how the models err")
    add("--dial", action="append", default=[], metavar="NAME=VALUE", help="turn one dial; repeatable")
    add("--latency", default="off", metavar="off|on|NAME=VALUE,...", help="the latency model and its values")
    add("--cache-tokens", type=int, default=None, metavar="N", help="size of the prefix cache; 0 is off")
    add("--max-context", type=int, default=None, metavar="N", help="most tokens of prompt and reply")
    add("--no-tool-logprobs", action="store_true", help="give no log-probs on tool calls")
    add(
        "--noncanonical",
        type=float,
        default=0.0,
        metavar="RATE",
        help="share of merged tokens sampled in two",
    )
    add("--reasoning", default="content", choices=["content", "field", "dropped"], help="where thinking goes")
    add("--history-thinking", default="keep", choices=["keep", "drop"], help="thinking of earlier replies")
    add("--ignore-n", action="store_true", help="always return one choice")
    add("--ignore-seed", action="store_true", help="draw a new seed for each request")
    add("--fail-rate", type=float, default=0.0, metavar="RATE", help="share of requests that fail")
    add("--fail-seed", type=int, default=0, metavar="SEED", help="what decides which ones fail")
    add("--api-key", default="", metavar="KEY", help="key that requests must carry")
    add("--exit-with-parent", action="store_true", help="stop when the parent dies or closes standard input")
    return parser


def _settings(asked: argparse.Namespace) -> Settings:
    values: dict[str, Any] = {
        "preset": asked.preset,
        "dials": dict(_pair(text, "--dial") for text in asked.dial),
        "tool_logprobs": not asked.no_tool_logprobs,
        "noncanonical": asked.noncanonical,
        "reasoning": asked.reasoning,
        "history_thinking": asked.history_thinking,
        "ignore_n": asked.ignore_n,
        "ignore_seed": asked.ignore_seed,
        "fail_rate": asked.fail_rate,
        "fail_seed": asked.fail_seed,
        "api_key": asked.api_key,
    }
    for name in ("cache_tokens", "max_context"):
        if getattr(asked, name) is not None:
            values[name] = getattr(asked, name)
    if asked.latency != "off":
        pairs = [] if asked.latency == "on" else asked.latency.split(",")
        values["latency"] = dict(_pair(text, "--latency") for text in pairs)
    try:
        if "latency" in values:
            values["latency"] = msgspec.convert(values["latency"], Latency, strict=False)
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"server settings: {error}") from None


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{option} {text!r}: expected NAME=VALUE")
    return name.strip(), value.strip()


if __name__ == "__main__":
    sys.exit(main())
