"""Records runs anew, in an environment in which the library is installed:

PYTHONPATH=tests/support python tests/e2e/recorded/record.py [CASE...]

CASE is a name in the table, or a part of some. Files whose recording is still true stay as they are; of the others, the
first difference of each is printed. A recording may change where the library is meant to say something else, and then
the difference is reviewed like code: ``xz -dc FILE`` prints a recording.
"""

from __future__ import annotations

import sys

from cases import CASES
from dump import first_difference
from files import FOLDER, make, path_of, read, write
from stage import House


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(parts: list[str]) -> None:
    """Record the cases whose names contain one of the parts, or all of them."""
    chosen = [name for name in CASES if not parts or any(part in name for part in parts)]
    FOLDER.mkdir(exist_ok=True)
    house = House()
    try:
        for name in chosen:
            known = read(name) if path_of(name).exists() else None
            found = make(name, house)
            if write(name, found):
                say(f"{name}: {'new' if known is None else first_difference(known, found, 'recording')}")
    finally:
        house.close()
    if not parts:
        for path in FOLDER.glob("*.json.xz"):
            if path not in {path_of(name) for name in CASES}:
                path.unlink()
                say(f"{path.name}: no case has this name; removed")


if __name__ == "__main__":
    main(sys.argv[1:])
