"""The run files of schema 8 that stand beside the recordings: of which case each is, and how one is unpacked."""

from __future__ import annotations

import lzma
from pathlib import Path

from files import FOLDER

FILES = FOLDER / "files"

FINISHED: dict[str, str] = {
    "chain": "strategy chain, scripted",
    "tree-grpo": "strategy tree-grpo, simulated",
    "budget": "task budget of several things, chains",
    "settled": "settled 0.7, waves",
    "filters": "filters of a user's own",
    "parts": "reward of parts",
    "effects": "tool with side effects",
    "refused": "refused in later turns, context",
    "inside-turns": "token ids, generate, inside turns",
    "drift": "token ids, chat, drift bridge",
    "council": "team council, tree-grpo",
    "program": "program with tools, tree-grpo",
    "gave-up": "program that gives a request up, tree-grpo",
}
"""By its name, the case that each file is of."""

BEGUN: dict[str, tuple[str, bool]] = {
    "begun-agent": ("agent", True),
    "begun-team": ("team", False),
    "begun-program": ("program", True),
}
"""By its name, the kind of each run that was ended before its time, and whether it was killed or interrupted."""


def unpack(name: str, folder: Path) -> Path:
    """Write one of the files into a folder, and return where it is."""
    path = folder / f"{name}.run"
    path.write_bytes(lzma.decompress((FILES / f"{name}.run.xz").read_bytes()))
    return path
