"""A job in a run file, so that ``trunkline resume`` needs nothing else: data, and the names of the user's code.

Nothing in it was pickled and nothing in it is secret. What is not to be had by name has to be given again by the script
that began the run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.serialization import fields_of, load, pack
from trunkline._internal.text import printable, redact
from trunkline.errors import ConfigError, CrossingError
from trunkline.llm.config import EndpointSpec
from trunkline.protocol.job import EncodedJob, as_packed, from_packed, live, reward_name
from trunkline.scoring.filters.base import check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.agent import Agent
    from trunkline.protocol.job import Job
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.rewards import Reward

__all__ = ["STORED", "StoredJob", "scored_by", "store_job", "stored_job", "stored_judges"]

STORED = "job"
"""Key of the file's ``meta`` table under which it stands."""


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """What ``trunkline resume`` goes by.

    Attributes:
        packed: The job; None where it cannot be stored, and without its reward where that cannot be.
        why: Then, why not.
        folder: Where the run was begun.
        workers: How many workers it had.
        durable: Whether it was durable.
    """

    packed: EncodedJob | None = None
    why: str = ""
    folder: str = ""
    workers: int = 0
    durable: bool = False


def store_job(job: Job, workers: int, *, durable: bool) -> dict[str, Any]:
    """Return a job as it stands in a run file.

    Args:
        job: The job.
        workers: How many workers it has.
        durable: Whether the run is durable.
    """
    packed, why = _pack(job)
    stored = StoredJob(packed=packed, why=why, folder=_here(), workers=workers, durable=durable)
    made: dict[str, Any] = msgspec.to_builtins(stored)
    return made


def stored_job(path: Path, meta: Mapping[str, str]) -> tuple[Job, StoredJob]:
    """Return the job of a run file, importing the code that it names.

    The current folder becomes that in which the run was begun, where it still is there.

    Args:
        path: The file.
        meta: Its table of that name.

    Raises:
        ConfigError: It has none; the message says why.
        CrossingError: Some of it cannot be imported here.
    """
    stored = _stored(path, meta)
    if stored.packed is None or stored.why:
        raise ConfigError(
            f"{printable(str(path))} cannot be resumed by itself: {printable(stored.why, 300)}; "
            "run the script that began it again, with resume=True"
        )
    if stored.folder and Path(stored.folder).is_dir():
        os.chdir(stored.folder)
    return from_packed(stored.packed), stored


def stored_judges(path: Path, meta: Mapping[str, str]) -> tuple[tuple[Filter, ...], Agent]:
    """Return the filters of a run file, and the agent whose turns they read, importing the code of these alone.

    Args:
        path: The file.
        meta: Its table of that name.

    Raises:
        ConfigError: It does not have them; the message says why.
        CrossingError: Some of it cannot be imported here.
    """
    stored = _stored(path, meta)
    packed = stored.packed
    if packed is None:
        raise ConfigError(printable(stored.why, 300))
    sys.path[:0] = [entry for entry in packed.path if entry not in sys.path]
    there = bool(stored.folder) and Path(stored.folder).is_dir()
    with contextlib.chdir(stored.folder) if there else contextlib.nullcontext():
        agent = msgspec.structs.replace(
            packed.agent,
            tools=[load(tool) for tool in packed.tools],
            dialect=packed.dialect if isinstance(packed.dialect, str) else load(packed.dialect),
        )
        # Whether there is a reward is for the scoring to say.
        return check([load(one) for one in packed.filters], scored=True), agent


def _stored(path: Path, meta: Mapping[str, str]) -> StoredJob:
    try:
        return msgspec.json.decode(meta.get(STORED, ""), type=StoredJob)
    except (msgspec.MsgspecError, ConfigError) as problem:
        why = printable(str(problem), 200)
        raise ConfigError(
            f"{printable(str(path))} does not say what its run does ({why}): "
            "resume it from where it was begun, with resume=True"
        ) from None


def scored_by(meta: Mapping[str, str], reward: Reward) -> dict[str, Any] | None:
    """Return the job of a run file with another reward, as it stands there; None where the file has none.

    Args:
        meta: The file's table of that name.
        reward: The reward that the run is to be gone on with.
    """
    try:
        stored = msgspec.json.decode(meta.get(STORED, ""), type=StoredJob)
    except (msgspec.MsgspecError, ConfigError):
        return None
    if stored.packed is not None:
        try:
            serialized = pack(reward, f"reward {reward_name(reward)!r}", by_value=False)
            here = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - entries may be empty, or no folders
            path = [*stored.packed.path, *(entry for entry in here if entry not in stored.packed.path)]
            packed, why = _openly(msgspec.structs.replace(stored.packed, reward=serialized, path=path))
        except CrossingError as problem:
            packed, why = None, str(problem)
        # Without its reward it cannot be gone on with, but its filters are still to be had.
        packed = packed or msgspec.structs.replace(stored.packed, reward=None)
        stored = msgspec.structs.replace(stored, packed=packed, why=why)
    made: dict[str, Any] = msgspec.to_builtins(stored)
    return made


def _pack(job: Job) -> tuple[EncodedJob | None, str]:
    """Return the job as data, or why that cannot be."""
    if stays := live(job.llms):
        return None, f"its LLM is a live {stays}"
    if any(isinstance(llm, EndpointSpec) and llm.secret is not None for llm in job.llms.values()):
        return None, "the endpoint's key or headers were given directly, and are in no file"
    try:
        packed = as_packed(job, by_value=False)
    except CrossingError as problem:
        return None, str(problem)
    return _openly(packed)


def _openly(packed: EncodedJob) -> tuple[EncodedJob | None, str]:
    """Return a job as data, or why it may not be in a file."""
    parts = [packed.strategy, packed.program, packed.reward, packed.environment, *packed.tools, *packed.filters]
    fields = [fields_of(part) for part in parts if part is not None]
    # As it would stand in the file, and what does so as bytes.
    seen = msgspec.json.decode(msgspec.json.encode([packed, fields]))
    if redact(seen) != seen:
        return None, "something in it looks like a key, and is in no file"
    return packed, ""


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
