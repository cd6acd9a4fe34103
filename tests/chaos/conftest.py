"""Options of the chaos test: its size, and its seed."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-tasks", type=int, default=120, help="tasks of a run that is disturbed (120; try 500)")
    parser.addoption("--chaos-kills", type=int, default=8, help="kills a run (8; try 100)")
    parser.addoption("--chaos-seed", type=int, default=0, help="seed of who is killed and when (0)")
