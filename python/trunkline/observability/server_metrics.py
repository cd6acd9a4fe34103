"""What model servers say of themselves: requests that run and wait, and how full the cache of keys and values is."""

from __future__ import annotations

import http.client
import logging
import re
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trunkline.errors import EndpointError
from trunkline.llm.config import LLM
from trunkline.observability.logging import safe
from trunkline.observability.observers import Observer
from trunkline.store.stats.summary import ServerLoad, ServerUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.observability.observers import Progress
    from trunkline.protocol.job import Job
    from trunkline.store.schema import TakenRow
    from trunkline.types import Task


logger = logging.getLogger(__name__)

_EVERY: Final = 5.0  # seconds between two looks at a server
_PATIENCE: Final = 2.0  # seconds that a server has for each piece of its answer
_LONGEST: Final = 8 << 20  # bytes of an answer that are read
_LARGEST: Final = 1e9  # no server runs or holds so many requests

_NAMES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "cache",
    "vllm:gpu_cache_usage_perc": "cache",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "cache",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:kv_cache_usage_ratio": "cache",
}
"""Gauges of vLLM, SGLang and llama.cpp, by what they count here; a cache is from 0 to 1 full."""

_SAMPLE: Final = re.compile(r"([\w:]+)(?:\{.*\})?\s+(\S+)")


def server_load(text: str) -> ServerLoad | None:
    """Read metrics in the text format of Prometheus; None where no known one is among them.

    Requests of several engines behind one server are added up; of their caches the fullest counts.
    """
    found: dict[str, float] = {}
    for line in text.split("\n"):
        match = _SAMPLE.match(line)
        if match is None or (field := _NAMES.get(match[1])) is None:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if 0 <= value <= (1 if field == "cache" else _LARGEST):
            found[field] = max(found.get(field, 0.0), value) if field == "cache" else found.get(field, 0.0) + value
    if not found:
        return None
    return ServerLoad(int(found.get("running", 0)), int(found.get("waiting", 0)), found.get("cache"))


class ServerMetrics(Observer):
    """Asks each endpoint of a run for its metrics every five seconds, at ``/metrics`` in the place of its ``/v1``.

    It asks without a key, in a thread of its own. An endpoint that gives no known metrics is asked once.
    """

    def __init__(self, every: float = _EVERY) -> None:
        self._every = every
        self._ended = threading.Event()
        self._seen: dict[str, ServerUse] = {}

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """See ``Observer``."""
        self._seen, self._ended = {}, threading.Event()
        urls = sorted({url for llm in job.llms.values() if isinstance(llm, LLM) for url in llm.base_urls})
        threading.Thread(target=self._ask, args=(urls, self._ended), name="server-metrics", daemon=True).start()

    def look(self, progress: Progress) -> None:
        """See ``Observer``."""
        progress.servers = self._seen

    def end(self, progress: Progress) -> None:
        """See ``Observer``."""
        self._ended.set()
        self.look(progress)

    def _ask(self, urls: Sequence[str], ended: threading.Event) -> None:
        while urls:
            known = []
            for url in urls:
                try:
                    load = server_load(_metrics(url))
                    why = "" if load else "no gauge of vLLM, SGLang or llama.cpp is among its metrics"
                except (OSError, ValueError, http.client.HTTPException, EndpointError) as error:  # ValueError: no ASCII
                    load, why = None, f"{error}"
                if load is not None:
                    self._seen = self._seen | {url: self._seen.get(url, ServerUse()).after(load)}
                if load is not None or url in self._seen:
                    known.append(url)
                else:
                    logger.warning("%s gives no metrics that are known: %s", safe(url), safe(why, 200))
            urls = known
            if ended.wait(self._every):
                return


def _metrics(url: str) -> str:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
    try:
        connection.request("GET", parts.path.rstrip("/").removesuffix("/v1") + "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            raise EndpointError(f"it answers {answer.status} to GET /metrics")
        return answer.read(_LONGEST).decode("utf-8", "replace")
    finally:
        connection.close()
