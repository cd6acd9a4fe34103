"""The soft limit of descriptors follows what is asked for; a hard limit that is too low is said at once."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from trunkline._internal import resources as descriptors
from trunkline.errors import ConfigError


@pytest.fixture
def limits(monkeypatch):
    """Stand in for the limits of this process, which it could not raise again."""
    state = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: state["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: state.update(now=pair))
    monkeypatch.setattr(descriptors, "_open", lambda: 20)
    return state


@pytest.mark.parametrize(
    ("now", "connections", "wanted", "after"),
    [
        ((1024, 4096), 256, None, (1024, 4096)),
        ((1024, 4096), 876, None, (1024, 4096)),
        ((1024, 4096), 877, None, (1025, 4096)),
        ((1024, 4096), 3948, None, (4096, 4096)),
        ((1024, 4096), 2000, 9000, (4096, 4096)),
        ((1024, 4096), 256, 2000, (2148, 4096)),
        ((1024, resource.RLIM_INFINITY), 50_000, None, (50_148, resource.RLIM_INFINITY)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 50_000, None, (resource.RLIM_INFINITY,) * 2),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed(limits, now, connections, wanted, after):
    limits["now"] = now
    descriptors.make_room(connections, wanted)
    assert limits["now"] == after


def test_a_hard_limit_that_is_too_low_is_an_error_with_both_numbers(limits):
    with pytest.raises(ConfigError, match=r"max_concurrency=3949 needs 4,097 open files.*may have 4,096.*most 3948"):
        descriptors.make_room(3949)
    assert limits["now"] == (1024, 4096)


SCRIPT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1000))
from trunkline.llm.config import LLM
LLM("http://h/v1", max_concurrency=400).open()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 528)
try:
    LLM("http://h/v1", max_concurrency=2000).open()
except ValueError as error:
    print(type(error).__name__, "max_concurrency=2000" in str(error))
"""


def test_opening_endpoints_makes_room_in_a_real_process():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "ConfigError", "True"]
