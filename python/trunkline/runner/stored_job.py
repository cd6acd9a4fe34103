"""A job in a run file, so that ``trunkline resume`` needs nothing else: data, and the names of the user's code.

Nothing in it was pickled and nothing in it is secret. Objects without a name have to be given again by the script that
began the run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.serialization import fields_of, load, pack
from trunkline._internal.text import printable, redact
from trunkline.errors import ConfigError, CrossingError
from trunkline.llm.config import LLM
from trunkline.protocol.job import EncodedJob, as_packed, from_packed, import_path, live
from trunkline.scoring.filters.base import check
from trunkline.scoring.rewards.base import full_name
from trunkline.tools.mcp.config import MCP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.agent import Agent
    from trunkline.protocol.job import Job
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.rewards import Reward

STORED = "job"
"""Key of the file's ``meta`` table under which it stands."""


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a run file: ``packed`` is None, or lacks the reward, where ``why`` says that it cannot be stored."""

    packed: EncodedJob | None = None
    why: str = ""
    folder: str = ""
    workers: int = 0
    durable: bool = False


def store_job(job: Job, workers: int, *, durable: bool) -> dict[str, Any]:
    """Return a job as a run file holds it."""
    packed, why = _pack(job)
    folder = ""
    with contextlib.suppress(OSError):
        folder = str(Path.cwd())
    return _written(StoredJob(packed=packed, why=why, folder=folder, workers=workers, durable=durable))


def stored_job(path: Path, meta: Mapping[str, str]) -> tuple[Job, StoredJob]:
    """Return a file's job and enter the folder of its run; ConfigError, or CrossingError for user code."""
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
    """Return the filters of a run file and the agent whose turns they read; raises as ``stored_job``."""
    stored = _stored(path, meta)
    packed = stored.packed
    if packed is None:
        raise ConfigError(printable(stored.why, 300))
    there = bool(stored.folder) and Path(stored.folder).is_dir()
    with contextlib.chdir(stored.folder) if there else contextlib.nullcontext():
        agent = packed.load_agent()
        # The scoring checks whether there is a reward.
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


def scored_by(path: Path, meta: Mapping[str, str], reward: Reward) -> dict[str, Any] | None:
    """Return the job of a run file with another reward, as the file holds it; None where the file has no job."""
    try:
        stored = _stored(path, meta)
    except ConfigError:
        return None
    if stored.packed is not None:
        try:
            serialized = pack(reward, f"reward {full_name(reward)!r}", by_value=False)
            paths = [*dict.fromkeys([*stored.packed.path, *import_path()])]
            packed, why = _openly(msgspec.structs.replace(stored.packed, reward=serialized, path=paths))
        except CrossingError as problem:
            packed, why = None, str(problem)
        # Without its reward the run cannot be resumed, but its filters can still be loaded.
        packed = packed or msgspec.structs.replace(stored.packed, reward=None)
        stored = msgspec.structs.replace(stored, packed=packed, why=why)
    return _written(stored)


def _written(stored: StoredJob) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(stored)
    return made


def _pack(job: Job) -> tuple[EncodedJob | None, str]:
    if stays := live(job.llms):
        return None, f"its LLM is a live {stays}"
    if any(isinstance(llm, LLM) and llm.secret is not None for llm in job.llms.values()):
        return None, "the endpoint's key or headers were given directly, and are in no file"
    if isinstance(job.agent.environment, MCP) and not job.agent.environment.stored:
        return None, "values of env or headers of an MCP server were given directly, and are in no file"
    try:
        packed = as_packed(job, by_value=False)
    except CrossingError as problem:
        return None, str(problem)
    return _openly(packed)


def _openly(packed: EncodedJob) -> tuple[EncodedJob | None, str]:
    """Return a job as data, or why it may not be in a file."""
    parts = [
        packed.strategy,
        packed.program,
        packed.reward,
        packed.environment,
        packed.before_tool,
        *packed.tools,
        *packed.filters,
    ]
    fields = [fields_of(part) for part in parts if part is not None]
    # As the file would hold it, with the bytes of serialized objects decoded.
    seen = msgspec.json.decode(msgspec.json.encode([packed, fields]))
    if redact(seen) != seen:
        return None, "something in it looks like a key, and is in no file"
    return packed, ""
