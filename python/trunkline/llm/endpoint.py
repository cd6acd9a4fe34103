"""One endpoint: where its routes are, what is in flight there, and how it has been doing."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trunkline.llm.classify import Site
from trunkline.llm.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.llm.classify import Verdict
    from trunkline.llm.quota import Quota
    from trunkline.llm.window import Window

__all__ = ["Endpoint"]

EJECTED: Final = 1.0
"""Seconds of the first ejection in a row; each further one is twice as long."""

EJECTED_CAP: Final = 30.0
"""The longest ejection in seconds, before jitter."""

_SILENT: Final = 16
"""Answers without a word about limits, after which none is looked for: most servers of one's own have none."""

_VERSION: Final = re.compile(r"/v\d+[a-z0-9]*$")
_CROWD: Final = 8
"""So many requests in flight allow one more failure in a row: a crowd meets the same moment of trouble together."""


class Endpoint:
    """One base URL and its state. It is open, closed until a time, or out for good.

    Closed by an ejection it needs a probe: one request that is let through when its time is over, and whose outcome
    opens it or closes it for twice as long. Closed by a pause, which a server asked for, it opens by itself.

    Args:
        base_url: The base URL, such as ``http://host:8000/v1``.
        key_env: Name of the variable that holds the key, for messages.
        secret: The key, or all that is secret.
        window: How much may be in flight.
        quota: What it says of its own limits.

    Attributes:
        gate: Where requests enter.
        reached: Whether it has ever answered.
        good: Whether it has ever completed.
        until: When it may be asked again; minus infinity while it is open, infinity when it is out.
        ejected: Whether it needs a probe.
        ejections: Ejections in a row, without an answer between them.
        out: Whether it serves nobody: wrong key, model, quota or URL.
        probing: Whether the probe is under way.
        trouble: Why it is closed or out, or was last.
    """

    __slots__ = (
        "_failures",
        "_key_env",
        "_root",
        "_secret",
        "_targets",
        "base_url",
        "ejected",
        "ejections",
        "gate",
        "good",
        "out",
        "plain",
        "probing",
        "reached",
        "trouble",
        "until",
    )

    def __init__(
        self, base_url: str, key_env: str, secret: str | tuple[str, ...], window: Window, quota: Quota
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._root = _VERSION.sub("", self.base_url)
        self._key_env = key_env
        self._secret = secret
        self._targets: dict[str, tuple[str, Site]] = {}
        self._failures = self.ejections = 0
        self.gate = Gate(window, quota)
        self.plain = self.base_url.startswith("http://")
        self.reached = self.good = False
        self.until = -math.inf
        self.ejected = self.probing = self.out = False
        self.trouble: Verdict | None = None

    @property
    def load(self) -> int:
        """Requests in flight there or waiting to be."""
        return self.gate.in_flight + self.gate.waiting

    def target(self, route: str) -> tuple[str, Site]:
        """Where a route is.

        Args:
            route: A path below the base URL, ``/chat/completions``; with two slashes in front, ``//tokenize``, one
                below the server's root, which is the base URL without its version (``/v1``).

        Returns:
            The URL, and what errors may show of it.
        """
        found = self._targets.get(route)
        if found is None:
            url = self._root + route[1:] if route.startswith("//") else self.base_url + route
            shown = urlsplit(url)._replace(query="", fragment="").geturl()
            found = self._targets[route] = (url, Site(shown, self._key_env, self._secret))
        return found

    def failed(self, verdict: Verdict, *, probe: bool, after: int, now: float, draw: float) -> bool:
        """Note that it did not serve: refused, reset, too slow, or a 5xx.

        What comes late, after an ejection, is no news.

        Args:
            verdict: What happened.
            probe: Whether it was the probe that failed.
            after: Failures in a row, for a request that is alone, after which the endpoint is ejected.
            now: The present.
            draw: Jitter, from 0 to 1.

        Returns:
            Whether it is ejected by this.
        """
        if self.out:
            return False
        self._failures += 1
        self.trouble = verdict
        if not probe and (self.ejected or self._failures < after + self.gate.in_flight // _CROWD):
            return False
        if not self.ejected:
            self.gate.window.restart()
        seconds = min(EJECTED_CAP, EJECTED * 2.0 ** min(self.ejections, 60)) * (0.75 + 0.5 * draw)
        self.ejections += 1
        self.ejected, self.probing = True, False
        self.close(now + seconds)
        return True

    def pause(self, verdict: Verdict, until: float) -> None:
        """Close it until a time that the server named."""
        if not self.out:
            self.trouble = verdict
            self.close(max(until, self.until))

    def strike(self, verdict: Verdict, until: float) -> None:
        """Take it out until a time, as it serves nobody."""
        self.trouble = verdict
        self.ejected = self.probing = False
        self.out = True
        self.close(until)

    def close(self, until: float) -> None:
        """Let nobody in until a time; who waits at the gate leaves."""
        self.until = until
        self.gate.urgent = False
        self.gate.close()

    def served(self) -> bool:
        """Note an answer that shows that it is up.

        Returns:
            Whether it was ejected, and is open by this.
        """
        self._failures = 0
        if not self.ejected:
            return False
        self.ejections = 0
        self.open()
        return True

    def open(self) -> None:
        """Let requests in again."""
        self.until = -math.inf
        self.ejected = self.probing = self.out = self.gate.urgent = False
        self.gate.closed = False

    def probe(self) -> None:
        """Let one request in, to see whether it is up again."""
        self.probing = self.gate.urgent = True

    def learn(self, status: int, headers: Mapping[str, str]) -> None:
        """Take in what an answer says of rate limits; the request is still counted as in flight.

        An endpoint that never says anything is asked no more, except by a 429.
        """
        gate = self.gate
        if gate.quota.silent < _SILENT or status == 429:
            gate.quota.learn(headers, gate.in_flight - 1 + gate.ahead, gate.tokens)
