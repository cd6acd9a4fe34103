"""Seeded runs of every kind come to the trees, rows and requests that are recorded of them.

``record.py`` says how recordings are made, ``cases.py`` which runs there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cases import CASES
from dump import first_difference
from files import FOLDER, make, path_of, read
from stage import House

from trunkline._core import DIGEST_VERSION


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def test_every_case_has_one_recording_and_every_recording_a_case():
    files = [path_of(name) for name in CASES]
    assert len(set(files)) == len(files)
    assert set(FOLDER.glob("*.json.xz")) == set(files)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("name", CASES)
def test_a_run_comes_to_what_is_recorded_of_it(name: str, house: House):
    known, found = read(name), make(name, house)
    runs = json.loads(json.dumps(found["runs"]))
    problems = [first_difference(known["runs"], runs, name), first_difference(known["digests"], found["digests"], name)]
    if known["digest_version"] != DIGEST_VERSION:
        problems[1] = f"{name}: digests of version {known['digest_version']}; once trees are equal, record new ones"
    if any(problems):
        pytest.fail("\n".join(filter(None, problems)), pytrace=False)
