"""Where a run's engines live."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trunkline.bounds import whole
from trunkline.errors import ConfigError
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.inline import Inline
from trunkline.runtime.local import Local

if TYPE_CHECKING:
    from trunkline.runtime.backend import Backend
    from trunkline.runtime.job import Job

__all__ = ["MOST_WORKERS", "make_backend"]

MOST_WORKERS = 256


def make_backend(job: Job, workers: int | None, tasks: int, pool: Backend | None = None) -> Backend:
    """Choose where engines live: in processes for endpoints, in this one for a live LLM or ``workers=0``.

    Args:
        job: What will be run.
        workers: Worker processes, as asked for.
        tasks: How many tasks there are: no more workers are started.
        pool: Where they are to live, if that was said.

    Raises:
        ConfigError: If the number makes no sense, or processes are asked for with an LLM that cannot leave this one.
    """
    if workers is not None:
        whole("workers", workers, 0, MOST_WORKERS)
    live = not isinstance(job.llm, EndpointSpec)
    if pool is not None and not live:
        return pool
    if workers is None:
        return Inline() if live else Local(min(2, os.cpu_count() or 1, tasks))
    if workers == 0:
        return Inline()
    if live:
        raise ConfigError(
            f"workers={workers}: a live {type(job.llm).__name__} stays in its process; "
            "leave workers out, or give the endpoint's URL"
        )
    return Local(min(workers, tasks))
