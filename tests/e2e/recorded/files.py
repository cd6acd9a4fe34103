"""Recordings as files: one for each case, compressed, written anew only where it says something else."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

from cases import CASES, PARTS
from places import TESTS
from stage import House, Stage

from trunkline._core import DIGEST_VERSION

FOLDER = TESTS / "fixtures" / "recorded"

Recording = dict[str, Any]


def path_of(name: str) -> Path:
    """The file of a case."""
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json.xz"


def make(name: str, house: House) -> Recording:
    """Make the runs of a case and return what they came to."""
    stage = Stage(house)
    try:
        CASES[name](stage)
    finally:
        runs = stage.close()
    parts = PARTS.get(name)
    if parts is not None:
        runs = {run: {part: found[part] for part in parts} for run, found in runs.items()}
    digests = {run: found.pop("digests") for run, found in runs.items() if "digests" in found}
    return {"runs": runs, "digest_version": DIGEST_VERSION, "digests": digests}


def read(name: str) -> Recording:
    """Return what is recorded of a case."""
    return json.loads(lzma.decompress(path_of(name).read_bytes()))


def write(name: str, found: Recording) -> bool:
    """Record a case; returns whether the file has changed."""
    path = path_of(name)
    if path.exists() and read(name) == found:
        return False
    text = json.dumps(found, ensure_ascii=False, indent=1)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return True
