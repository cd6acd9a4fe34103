"""Endpoints as data that crosses to workers.

The key is not part of it: it is read from an environment variable when the endpoint is opened. A key or header given
directly stays in memory, outside every encoding, and crosses only by ``LLM.secret``.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from trunkline._internal.resources import make_room
from trunkline._internal.validation import check_bool, check_float, check_int, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.llm.http.outcome import Backoff
from trunkline.llm.pricing import Price, prices_by_url
from trunkline.llm.token_ids.base import TokenMode, read_mode
from trunkline.llm.types import Limits, Routing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.llm.http.client import HttpLLM


DEFAULT_URL: Final = "https://api.openai.com/v1"
_DEFAULT_VARIABLE: Final = "OPENAI_API_KEY"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


class Private(msgspec.Struct, frozen=True, dict=True):
    """Secrets given directly. Header names are fields; the values are in no encoding and no repr."""

    headers: tuple[str, ...] = ()
    key: bool = False

    @classmethod
    def holding(cls, key: str | None, headers: Mapping[str, str]) -> Private:
        made = cls(tuple(sorted(headers)), key is not None)
        made.__dict__["values"] = (key, dict(headers))
        return made

    @property
    def values(self) -> tuple[str | None, dict[str, str]]:
        found: tuple[str | None, dict[str, str]] | None = self.__dict__.get("values")
        if found is not None:
            return found
        if self.key or self.headers:
            raise ConfigError("the endpoint's key or headers did not cross to this process; use with_secret")
        return None, {}


class _Varargs(msgspec.StructMeta):
    """Lets base URLs be given one after another, and a key that becomes no field."""

    def __call__(
        cls,  # noqa: N805 - ruff does not see that this is a metaclass
        *base_urls: str,
        api_key_env: str = _DEFAULT_VARIABLE,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Any:
        default = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or DEFAULT_URL
        if api_key is None and api_key_env != _DEFAULT_VARIABLE:
            _named(api_key_env)
        key = None if api_key is None else _key(api_key, "api_key")
        private = Private.holding(key, _headers(headers or {}))
        return super().__call__(base_urls=base_urls or (default,), api_key_env=api_key_env, private=private, **fields)


class LLM(msgspec.Struct, frozen=True, metaclass=_Varargs):
    """The model's server: one or more OpenAI-compatible endpoints, as data.

    Args:
        base_urls: Base URLs such as ``http://localhost:8000/v1``; a tree stays with one of them. Without any,
            ``OPENAI_BASE_URL``, then ``OPENAI_API_BASE``, then OpenAI's own.
        api_key_env: Name of the environment variable that holds the key. Only the name is stored.
        api_key: The key itself, if it must be; kept in memory only, never stored, logged or shown.
        headers: Further headers of each request; their values are treated like a key.
        max_concurrency: Most requests in flight at once.
        timeout: Seconds for one attempt.
        max_retries: Attempts after the first; 0 for none. One that was told to come later (429), or only found that a
            server is still down, counts a quarter.
        deadline: Seconds that the attempts and waits of one call may take together.
        siblings: Whether draws of one state go out as one request with ``n``. Where a server takes no notice of it or
            refuses it, that is noticed, and they go out one by one from then on.
        price: What tokens cost: one ``Price`` for all endpoints, also as a text such as
            ``"prompt=0.15,generated=0.6"`` (of a million tokens), or one for each base URL. Kept by base URL.
        limits: Rates, and how much may be in flight at one endpoint.
        routing: How endpoints are chosen, where there are several.
        tokens: Whether and how token ids and log-probs are asked for and kept on the tree: a ``TokenMode``, or a
            text as on the command line (``"chat"``, ``"completions:tokenizer=FOLDER"``); None for not at all.
        send_seed: Whether requests have a seed. Without one, for servers that refuse it, a run cannot be repeated.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    base_urls: tuple[str, ...]
    api_key_env: str = "OPENAI_API_KEY"
    max_concurrency: int = 256
    timeout: float = 600.0
    max_retries: int = 5
    deadline: float = 3600.0
    siblings: bool = True
    price: dict[str, Price] = {}
    limits: Limits = Limits()
    routing: Routing = Routing()
    tokens: TokenMode | None = None
    send_seed: bool = True
    private: Private = Private()

    if TYPE_CHECKING:

        def __init__(
            self,
            *base_urls: str,
            api_key_env: str = "OPENAI_API_KEY",
            api_key: str | None = None,
            headers: Mapping[str, str] | None = None,
            max_concurrency: int = 256,
            timeout: float = 600.0,
            max_retries: int = 5,
            deadline: float = 3600.0,
            siblings: bool = True,
            price: Price | str | Mapping[str, Price] | None = None,
            limits: Limits = ...,
            routing: Routing = ...,
            tokens: TokenMode | str | None = None,
            send_seed: bool = True,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not self.base_urls:
            raise ConfigError("an endpoint needs at least one base URL")
        msgspec.structs.force_setattr(self, "base_urls", tuple(_base_url(url) for url in self.base_urls))
        msgspec.structs.force_setattr(self, "price", prices_by_url(self.price, self.base_urls, _base_url))
        check_int("max_concurrency", self.max_concurrency, 1)
        check_int("max_retries", self.max_retries, 0)
        check_float("timeout", self.timeout, 0, above=True, unit="seconds")
        check_float("deadline", self.deadline, 0, above=True, unit="seconds")
        for field in ("siblings", "send_seed"):
            check_bool(field, getattr(self, field))
        for field, wanted in (("limits", Limits), ("routing", Routing)):
            check_that(
                isinstance(getattr(self, field), wanted),
                f"{field} must be {wanted.__name__}(...)",
                getattr(self, field),
            )
        msgspec.structs.force_setattr(self, "tokens", read_mode("tokens", self.tokens))
        if not isinstance(self.api_key_env, str) or not self.api_key_env.isidentifier():
            # It may be a key put in the wrong place, so it is not shown.
            raise ConfigError("api_key_env must be the name of an environment variable, not a key")

    def __repr__(self) -> str:
        given = [repr(url) for url in self.base_urls]
        for field, usual in zip(("api_key_env", "max_concurrency"), LLM.__struct_defaults__, strict=False):
            if getattr(self, field) != usual:
                given.append(f"{field}={getattr(self, field)!r}")
        return f"LLM({', '.join(given)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return msgspec.convert, (msgspec.to_builtins(self), LLM)

    def settings(self) -> dict[str, Any]:
        """Describe it for a run file: every field but what was given directly, of which the header names stay."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["private"]
        return fields | {"headers": self.private.headers}

    @property
    def secret(self) -> str | None:
        """The key and headers given directly, as one string for ``with_secret``, or None. Never store it."""
        key, headers = self.private.values
        if key is None and not headers:
            return None
        return msgspec.json.encode([key, headers]).decode()

    def with_secret(self, secret: str | None) -> LLM:
        """Give back what ``secret`` held, after this object crossed to another process."""
        if secret is None:
            return self
        key, headers = msgspec.json.decode(secret, type=tuple[str | None, dict[str, str]])
        return msgspec.structs.replace(self, private=Private.holding(key, headers))

    def with_key(self) -> LLM:
        """Hold the key of this process's environment, for a process that has another one.

        Raises:
            ConfigError: As ``key``.
        """
        return msgspec.structs.replace(self, private=Private.holding(self.key(), self.private.values[1]))

    def key(self) -> str | None:
        """Read the key, the one given directly or that of the environment. Never store it.

        Raises:
            ConfigError: It is missing although the endpoint is OpenAI's, or it cannot stand in a header.
        """
        given, _ = self.private.values
        found = given if given is not None else os.environ.get(self.api_key_env) or None
        if found is not None:
            return _key(found, self.api_key_env)
        if any(urlsplit(url).hostname == urlsplit(DEFAULT_URL).hostname for url in self.base_urls):
            raise ConfigError(f"the environment variable {self.api_key_env} is not set; set it, or give a base URL")
        return None

    def open(self, parties: int = 0, **options: Any) -> HttpLLM:
        """Read the key and make the client. Nothing is sent.

        Args:
            parties: How many processes share the limits: this one then takes its slots through the LLM's
                ``shared_slots``. 0 where the limits are its own.
            options: Passed to ``HttpLLM``: a transport, a clock.

        Raises:
            ConfigError: The key is missing although the endpoint is OpenAI's, or it cannot stand in a header;
                or this process may not open as many connections as ``max_concurrency`` says, or its part of it.
        """
        # Here, because a controller whose workers do the talking needs no HTTP client.
        from trunkline.llm.http.client import HttpLLM  # noqa: PLC0415

        key, headers = self.key(), self.private.values[1]
        room = make_room(-(-self.max_concurrency // max(1, parties)), self.max_concurrency * len(self.base_urls))
        llm = HttpLLM(
            self.base_urls,
            key,
            key_env=self.api_key_env,
            headers=headers,
            max_concurrency=self.max_concurrency,
            timeout=self.timeout,
            siblings=self.siblings,
            backoff=Backoff(attempts=self.max_retries + 1, deadline=self.deadline),
            limits=self.limits,
            routing=self.routing,
            parties=parties,
            **options,
        )
        if llm.shared_slots is not None:
            llm.shared_slots.most = room
        return llm


def _base_url(url: str) -> str:
    if not isinstance(url, str):
        raise ConfigError(f"a base URL must be a string, not {type(url).__name__}")
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("the base URL cannot be read; write it as http://host:port/v1") from None
    # Userinfo first: no later message may show the URL while a password could stand in it.
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"the base URL of {host} holds a user or password; use api_key_env or headers instead")
    if parts.scheme not in {"http", "https"} or not host:
        shown = "" if "@" in url else f" {url!r:.100}"
        raise ConfigError(f"the base URL{shown} must start with http:// or https:// and name a host")
    if parts.query or parts.fragment:
        raise ConfigError(f"the base URL of {host} must have no query and no fragment; use headers for a key")
    if re.search(r"[\s\x00-\x20\x7f\\]", url.strip()):
        raise ConfigError(f"the base URL of {host} holds a space or a control character")
    path = re.sub(r"(?:/chat)?/completions\Z", "", parts.path.rstrip("/"))
    return f"{parts.scheme}://{parts.netloc}{path}"


def _named(variable: str) -> None:
    """Refuse a variable that is not set. Its name is not shown: it may be the key itself."""
    if not isinstance(variable, str) or not os.environ.get(variable):
        raise ConfigError("api_key_env (--api-key-env) names a variable that is not set in the environment")


def _key(key: str, name: str) -> str:
    key = key.strip() if isinstance(key, str) else ""
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key in {name} is empty or holds characters that no header can carry")
    return key


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name) or name.lower() in _OWN:
            raise ConfigError(f"{short_repr(name)} is no header that can be set")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise ConfigError(f"the value of the header {name} must be printable ASCII")
        checked[name] = value
    return checked
