"""What a user may say about limits and routing, as data that crosses to workers."""

from __future__ import annotations

import msgspec

from trunkline.bounds import number, shown, whole
from trunkline.errors import ConfigError

__all__ = ["Limits", "Routing"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How fast endpoints may be asked, beyond ``max_concurrency``.

    What endpoints say of their own limits in headers is kept as well.

    Attributes:
        requests_per_minute: Most requests a minute, in all; unlimited when None.
        tokens_per_minute: Most tokens a minute, in all, prompts and replies; unlimited when None. A request counts
            a quarter of its bytes and what it may generate until its reply tells.
        endpoint_concurrency: Most requests in flight at one endpoint; ``max_concurrency`` when None.
        adaptive: Whether an endpoint gets less in flight after a 429, or when it slows down, and more again later.
        slowdown: How many times its usual time for a token an endpoint may take before it gets less in flight.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    endpoint_concurrency: int | None = None
    adaptive: bool = True
    slowdown: float = 5.0

    def __post_init__(self) -> None:
        for name, option in (("requests_per_minute", "--rpm"), ("tokens_per_minute", "--tpm")):
            value = getattr(self, name)
            if value is not None:
                number(f"limits.{name} ({option})", value, 0, above=True)
        if self.endpoint_concurrency is not None:
            whole("limits.endpoint_concurrency", self.endpoint_concurrency, 1)
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"limits.adaptive must be true or false, not {shown(self.adaptive)}")
        number("limits.slowdown", self.slowdown, 1, above=True)


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Which endpoint a request goes to, where there are several, and when one is left alone.

    Attributes:
        margin: A tree leaves its endpoint when that has so many more requests than the least loaded one.
        session_headers: Whether to send the tree's key as ``X-Session-ID`` and ``X-SMG-Routing-Key``, by which
            routers in front of servers keep a tree on one of them. When None, over plain http only: hosted services
            need to know nothing of trees.
        memory: Trees whose endpoint is remembered.
        eject_after: Failures in a row after which an endpoint gets no requests for a while; one more for every
            eight in flight there, since a crowd fails together.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    margin: int = 32
    session_headers: bool | None = None
    memory: int = 65536
    eject_after: int = 3

    def __post_init__(self) -> None:
        whole("routing.margin", self.margin, 0)
        whole("routing.memory", self.memory, 1)
        whole("routing.eject_after", self.eject_after, 1)
        if self.session_headers is not None and not isinstance(self.session_headers, bool):
            raise ConfigError(f"routing.session_headers must be true, false or null, not {shown(self.session_headers)}")
