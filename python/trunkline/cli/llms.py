"""LLMs on the command line: ``--llm NAME=URL,OPTION=VALUE``, beside the one that ``--base-url`` is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.llm.limits import Limits
from trunkline.llm.names import check_name, there_is
from trunkline.llm.price import read_price
from trunkline.llm.spec import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HELP", "changed_llms", "read_llms"]

HELP: Final = (
    "One more LLM, which roles name by llm; repeatable. Options: api_key_env, max_concurrency, timeout, max_retries, "
    "rpm, tpm, and the price as prompt, generated, cached."
)

_RATES: Final = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
_PRICES: Final = ("prompt", "generated", "cached")
_FIELDS: Final = {"api_key_env": str, "max_concurrency": int, "timeout": float, "max_retries": int}


def read_llms(given: Iterable[str], usual: Mapping[str, Any]) -> dict[str, EndpointSpec]:
    """Make the LLMs that ``--llm`` names.

    Args:
        given: Its values. A name that comes again has one more base URL.
        usual: Fields of those that do not say otherwise.

    Raises:
        ConfigError: One cannot be read, or has a setting that cannot be.
    """
    made: dict[str, EndpointSpec] = {}
    for name, (urls, options) in _parts(given).items():
        try:
            fields = _fields(name, options)
            rates = {rate: fields.pop(rate) for rate in _RATES.values() if rate in fields}
            made[name] = EndpointSpec(*urls, **{**usual, **fields}, limits=Limits(**rates))
        except ConfigError as problem:
            raise ConfigError(f"--llm {name}: {problem}") from None
    return made


def changed_llms(there: Mapping[str, EndpointSpec], given: Iterable[str]) -> dict[str, EndpointSpec]:
    """Return LLMs with what ``--llm`` says of them now; a URL takes the place of all that there were.

    Args:
        there: The LLMs.
        given: Values of the option; ``NAME=,OPTION=VALUE`` leaves the URLs as they are.

    Raises:
        ConfigError: There is none of that name, or it has a setting that cannot be.
    """
    made = dict(there)
    for name, (urls, options) in _parts(given).items():
        if name not in there:
            raise ConfigError(f"--llm {name}: the run has no such LLM, but {there_is(there)}")
        fields = _fields(name, options)
        rates = {rate: fields.pop(rate) for rate in _RATES.values() if rate in fields}
        if rates:
            fields["limits"] = msgspec.structs.replace(there[name].limits, **rates)
        if urls:
            fields["base_urls"] = urls
        try:
            made[name] = msgspec.structs.replace(there[name], **fields)
        except ConfigError as problem:
            raise ConfigError(f"--llm {name}: {problem}") from None
    return made


def _parts(given: Iterable[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The base URLs and the options of each name."""
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for one in given:
        name, equals, rest = one.partition("=")
        if not equals or not name:
            raise ConfigError(f"--llm {shown(one)}: write NAME=URL, or NAME=URL,max_concurrency=8,...")
        check_name("--llm: NAME", name)
        url, *options = rest.split(",")
        urls, others = found.get(name, ((), ()))
        found[name] = (*urls, *([url] if url else [])), (*others, *options)
    return found


def _fields(name: str, options: Iterable[str]) -> dict[str, Any]:
    """Read options into fields of an LLM, rates among them."""
    fields: dict[str, Any] = {}
    prices: list[str] = []
    for option in options:
        key, _, value = option.partition("=")
        if _RATES.get(key, key) in fields:
            raise ConfigError(f"--llm {name}: option {key} is given twice")
        if key in _PRICES:
            prices.append(option)
        elif key in _RATES:
            fields[_RATES[key]] = _number(name, key, value, float)
        elif key in _FIELDS:
            fields[key] = _number(name, key, value, _FIELDS[key])
        else:
            there = ", ".join((*_FIELDS, *_RATES, *_PRICES))
            raise ConfigError(f"--llm {name}: {shown(option)} is no option=value that it knows; there is {there}")
    if prices:
        fields["price"] = read_price(",".join(prices))
    return fields


def _number(name: str, key: str, value: str, kind: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"--llm {name}: {key} must be a number, not {shown(value)}") from None
