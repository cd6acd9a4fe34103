"""Price; names of LLMs on record."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.validation import check_float, check_optional, check_that, parse_amounts, short_repr
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


EVERYWHERE: Final = "*"
"""In the place of a base URL: the price of whatever an LLM answers that is no list of endpoints."""

_MILLION: Final = 1_000_000

_MOST: Final = 1e12
"""No currency has tokens at more than that; beyond it sums would lose their meaning, and at last be infinite."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of tokens, in units of one currency per million tokens.

    Attributes:
        prompt: A prompt token that the server had not cached.
        generated: A generated token.
        cached: A prompt token that it had cached; the same as ``prompt`` when None.

    Raises:
        ConfigError: One is no number from 0 to 10^12.
    """

    prompt: float
    generated: float
    cached: float | None = None

    def __post_init__(self) -> None:
        check_float("price: prompt", self.prompt, 0, _MOST)
        check_float("price: generated", self.generated, 0, _MOST)
        check_optional(check_float, "price: cached", self.cached, 0, _MOST)

    @property
    def flat(self) -> bool:
        """Whether it makes no difference what was cached."""
        return self.cached is None or self.cached == self.prompt

    def of(self, prompt: int, cached: int, generated: int) -> float:
        """The cost of so many tokens.

        Args:
            prompt: Prompt tokens, cached ones included.
            cached: Cached ones among them.
            generated: Generated tokens.
        """
        each = self.prompt if self.cached is None else self.cached
        return ((prompt - cached) * self.prompt + cached * each + generated * self.generated) / _MILLION


def prices_by_url(given: Any, urls: Sequence[str], normal: Callable[[str], str]) -> dict[str, Price]:
    """The prices of endpoints by URL, from a Price or a mapping."""
    if given is None:
        return {}
    if isinstance(given, str):
        given = read_price(given)
    if isinstance(given, Price):
        return dict.fromkeys(urls, given)
    check_that(
        isinstance(given, Mapping),
        "price must be a Price, a text such as prompt=0.15,generated=0.6, or a mapping from base URLs to Prices",
        given,
    )
    prices = {normal(url): price for url, price in given.items()}
    for url, price in prices.items():
        if url not in urls:
            raise ConfigError(f"price names {short_repr(url)}, which is no base URL here; there is {', '.join(urls)}")
        check_that(isinstance(price, Price), f"the price of {url} must be a Price", price)
    missing = [url for url in urls if url not in prices] if prices else []
    if missing:
        raise ConfigError(
            f"price lacks {missing[0]}; give each endpoint one, Price(prompt=0, generated=0) if it is free"
        )
    return prices


def one_price(name: str, given: object) -> Price | None:
    """Check the price of an LLM, or None."""
    if given is None or isinstance(given, Price):
        return given
    raise ConfigError(f"{name} must be a Price, not {short_repr(given)}")


def price_at(prices: Mapping[str, Price], endpoint: str) -> Price | None:
    """The price at an endpoint: that of the longest base URL that begins its name."""
    bases = [base for base in prices if endpoint == base or endpoint.startswith(f"{base}/")]
    return prices[max(bases, key=len)] if bases else prices.get(EVERYWHERE)


def micros(price: Price, prompt: int, cached: int, generated: int) -> int:
    """What tokens cost in millionths, rounded up; the rounding noise of a float does not count."""
    return math.ceil(round(price.of(prompt, cached, generated) * _MILLION, 3))


def cost_of_call(prices: Mapping[str, Price], endpoint: str, prompt: int, cached: int, generated: int) -> int:
    """What a call with usage cost in millionths, rounded up; 0 without a price, and as uncached where not said."""
    price = price_at(prices, endpoint)
    return 0 if price is None else micros(price, prompt, min(max(0, cached), prompt), generated)


def read_price(text: str) -> Price:
    """Read a price from a command line: ``prompt=0.15,cached=0.075,generated=0.6``; ``cached`` may be left out."""
    usual = "prompt=0.15,cached=0.075,generated=0.6"
    fields = parse_amounts(
        text,
        Price.__struct_fields__,
        what="price",
        foreign="is no part of a price",
        write=f"{usual} (a million tokens)",
    )
    for name in ("prompt", "generated"):
        if name not in fields:
            raise ConfigError(f"the price lacks {name}; write {usual}")
    return Price(**fields)


MAIN: Final = ""
"""The name of the LLM that an agent asks which names none."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_MARK: Final = re.compile(rf" llm:({_NAME.pattern})(?: weights:|\Z)")


def check_name(what: str, name: str) -> str:
    """Check the name of an LLM."""
    fits = isinstance(name, str) and (name == MAIN or _NAME.fullmatch(name))
    check_that(fits, f"{what} must be a name of letters, digits, - and _", name)
    return name


def there_is(names: Collection[str]) -> str:
    """The names of a run's LLMs, for messages."""
    return ", ".join(short_repr(name) if name else "one without a name" for name in sorted(names))


def asking(namespace: str, llm: str) -> str:
    """The merge namespace of turns of a named LLM: turns of two LLMs never merge."""
    return f"{namespace} llm:{llm}" if llm else namespace


def llm_in(namespace: str) -> str:
    """The LLM's name in a namespace of ``asking``."""
    found = _MARK.search(namespace)
    return MAIN if found is None else found[1]


def named(llm: str, endpoint: str) -> str:
    """The name of an endpoint in records: two LLMs may share a URL at different prices."""
    return f"{llm}/{endpoint}" if llm else endpoint


def prices_named(llm: str, prices: Mapping[str, Price]) -> dict[str, Price]:
    """The prices of an LLM by its endpoints' names in records."""
    if not llm:
        return dict(prices)
    return {llm if url == EVERYWHERE else named(llm, url): price for url, price in prices.items()}
