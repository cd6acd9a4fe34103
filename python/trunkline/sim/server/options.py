"""The server's options, from the command line and the environment, checked before the server starts."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, NoReturn

import msgspec

from trunkline.errors import ConfigError
from trunkline.sim.model.choices import PRESETS, misfit, with_dials
from trunkline.sim.server.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["MOST_PORT", "VARIABLES", "Options", "Settings", "option_parser", "read_options"]


MOST_PORT: Final = 65535

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server.

    Attributes:
        preset: How models err whose name carries no preset.
        dials: Changes to that preset, by dial.
        latency: The latency model, or ``None`` to answer at once.
        tool_logprobs: Whether the tokens of tool calls have log-probs.
        noncanonical: Probability of sampling a merged token as its two parts.
        reasoning: Where thinking is returned: in the content between tags, in ``reasoning_content``, or not.
        history_thinking: ``keep`` the thinking of earlier replies in the prompt, or ``drop`` it.
        max_context: Most tokens of prompt and reply together.
        cache_tokens: Size of the prefix cache in tokens; 0 turns it off.
        ignore_n: Always return one choice.
        ignore_seed: Draw a new seed for each request, whatever it says.
        fail_rate: Share of requests that fail with 429 or 500.
        fail_seed: What decides which ones.
        api_key: The key that requests must carry; empty asks for none.
    """

    preset: str = "default"
    dials: dict[str, str | int | float] = {}
    latency: Latency | None = None
    tool_logprobs: bool = True
    noncanonical: Share = 0.0
    reasoning: Literal["content", "field", "dropped"] = "content"
    history_thinking: Literal["keep", "drop"] = "keep"
    max_context: Count = 131072
    cache_tokens: Annotated[int, msgspec.Meta(ge=0)] = 2_000_000
    ignore_n: bool = False
    ignore_seed: bool = False
    fail_rate: Share = 0.0
    fail_seed: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    api_key: str = ""


VARIABLES: Final = "TRUNKLINE_SIM_SERVE_"

_WORDS: Final = {
    word: truth for truth, words in ((True, "1 true yes on"), (False, "0 false no off")) for word in words.split()
}


class Options(NamedTuple):
    """The options of a command line; port 0 takes a free one."""

    settings: Settings
    host: str
    port: int
    exit_with_parent: bool


def read_options(arguments: Sequence[str], environment: Mapping[str, str], prog: str) -> Options:
    """Read the options; the command line precedes ``TRUNKLINE_SIM_SERVE_<OPTION>``, empty ones are ignored.

    Raises:
        ConfigError: An option or a variable is wrong; the message begins with its name.
        SystemExit: Help was asked for and printed.
    """
    parser = option_parser(prog)
    values = vars(parser.parse_args(arguments))
    names = {name: _option(name) for name in (*_TEXTS, *_FLAGS)}
    for name in names:
        variable = VARIABLES + name.upper()
        text = environment.get(variable, "").strip()
        if not text or name in values:
            continue
        names[name] = variable
        if name in _FLAGS:
            if text.lower() not in _WORDS:
                raise ConfigError(f"{variable}: expected 1, true, 0 or false, got {text!r}")
            values[name] = _WORDS[text.lower()]
            continue
        texts = re.split(r"[\s,]+", text) if name == "dial" else [text]
        try:
            values |= vars(parser.parse_args([f"{_option(name)}={each}" for each in texts]))
        except ConfigError as error:
            raise ConfigError(str(error).replace(_option(name), variable, 1)) from None
    host, port = values.pop("host", "127.0.0.1"), values.pop("port", 0)
    exit_with_parent = values.pop("exit_with_parent", False)
    return Options(_settings(values, names), host, port, exit_with_parent)


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _port(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text) and int(text) <= MOST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {MOST_PORT}, got {text!r}")


def _host(text: str) -> str:
    if text:
        return text
    raise argparse.ArgumentTypeError("expected an address; 0.0.0.0 stands for all of this machine's")


_TEXTS: Final[dict[str, dict[str, Any]]] = {
    "host": {"type": _host, "help": "address to bind; the default, 127.0.0.1, is reachable from this machine only"},
    "port": {"type": _port, "help": "port; 0, the default, takes a free one"},
    "preset": {"choices": list(PRESETS), "help": "how the models err"},
    "dial": {"action": "append", "metavar": "NAME=VALUE", "help": "turn one dial; repeatable"},
    "latency": {"metavar": "off|on|NAME=VALUE,...", "help": "the latency model and its values"},
    "cache_tokens": {"type": int, "metavar": "N", "help": "size of the prefix cache; 0 is off"},
    "max_context": {"type": int, "metavar": "N", "help": "most tokens of prompt and reply"},
    "noncanonical": {"type": float, "metavar": "RATE", "help": "share of merged tokens sampled in two"},
    "reasoning": {"choices": ["content", "field", "dropped"], "help": "where thinking goes"},
    "history_thinking": {"choices": ["keep", "drop"], "help": "thinking of earlier replies"},
    "fail_rate": {"type": float, "metavar": "RATE", "help": "share of requests that fail"},
    "fail_seed": {"type": int, "metavar": "SEED", "help": "what decides which ones fail"},
    "api_key": {"metavar": "KEY", "help": "key that requests must carry"},
}

_FLAGS: Final = {
    "no_tool_logprobs": "give no log-probs on tool calls",
    "ignore_n": "always return one choice",
    "ignore_seed": "draw a new seed for each request",
    "exit_with_parent": "stop when the parent dies or closes standard input",
}


def option_parser(prog: str) -> _Parser:
    parser = _Parser(
        prog=prog,
        description="Serve the simulated models over HTTP.",
        epilog=f"Every option can also be set in the environment: {VARIABLES}PORT is --port.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for name, given in _TEXTS.items():
        parser.add_argument(_option(name), **given)
    for name, text in _FLAGS.items():
        parser.add_argument(_option(name), action="store_true", help=text)
    return parser


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _settings(values: dict[str, Any], names: Mapping[str, str]) -> Settings:
    """Settings from the values given; ``names`` holds the name of each option or variable."""
    if "no_tool_logprobs" in values:
        values["tool_logprobs"] = not values.pop("no_tool_logprobs")
    dials: dict[str, object] = dict(_pair(text, names["dial"]) for text in values.pop("dial", ()))
    try:
        with_dials(values.get("preset", "default"), dials)
    except ConfigError as error:
        raise ConfigError(f"{names['dial']}: {error}") from None
    latency = values.pop("latency", "off")
    if latency != "off":
        values["latency"] = _latency(latency, names["latency"])
    try:
        return msgspec.convert({**values, "dials": dials}, Settings)
    except msgspec.ValidationError as error:
        name, what = misfit(error)
        raise ConfigError(f"{names[name]}: {what}, got {values[name]!r}") from None


def _latency(text: str, option: str) -> Latency:
    values = {} if text == "on" else dict(_pair(part, option) for part in text.split(","))
    known = Latency.__struct_fields__
    unknown = next((name for name in values if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"{option}: no value {unknown!r}; there are {', '.join(known)}")
    try:
        return msgspec.convert(values, Latency, strict=False)
    except msgspec.ValidationError as error:
        name, what = misfit(error)
        raise ConfigError(f"{option}: {name}: {what}, got {values[name]!r}") from None


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option}: expected NAME=VALUE, got {text!r}")
    return name.strip(), value.strip()
