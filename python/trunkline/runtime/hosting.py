"""Where a run's engines live."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trunkline.bounds import shown, whole
from trunkline.errors import ConfigError
from trunkline.runtime.backend import Guest
from trunkline.runtime.fleet import MOST_WORKERS, Fleet
from trunkline.runtime.inline import Inline
from trunkline.runtime.llms import live
from trunkline.runtime.local import Local

if TYPE_CHECKING:
    from trunkline.runtime.backend import Backend
    from trunkline.runtime.job import Job

__all__ = ["make_backend"]


def make_backend(job: Job, workers: int | None, tasks: int, pool: object = None) -> Backend:
    """Choose where engines live: in a pool's, in processes for endpoints, in this one for a live LLM or ``workers=0``.

    Args:
        job: What will be run.
        workers: Worker processes, as asked for.
        tasks: How many tasks there are: no more workers are started.
        pool: The pool that was given, if one was.

    Raises:
        ConfigError: If the number makes no sense, or processes are asked for with an LLM that cannot leave this one.
    """
    stays = live(job.llms)
    if pool is not None:
        return _lent(workers, pool, stays)
    if workers is not None:
        whole("workers", workers, 0, MOST_WORKERS)
    if workers is None:
        return Inline() if stays else Local(min(2, os.cpu_count() or 1, tasks))
    if workers == 0:
        return Inline()
    if stays:
        raise ConfigError(
            f"workers={workers}: a live {stays} stays in its process; leave workers out, or give the endpoint's URL"
        )
    return Local(min(workers, tasks))


def _lent(workers: int | None, pool: object, stays: str | None) -> Backend:
    """A pool's backend, for one run."""
    if not isinstance(pool, Fleet):
        raise ConfigError(f"pool must be a trunkline.Pool, not {shown(pool)}")
    if workers is not None:
        raise ConfigError(f"workers={workers}: a pool has its own; give workers to trunkline.Pool, or leave pool out")
    if stays and pool.backend.workers:
        raise ConfigError(
            f"a live {stays} stays in its process: run it on trunkline.Pool('inline'), or give the endpoint's URL"
        )
    return Guest(pool.backend)
