"""The recorded runs: by name, how each is made. All are seeded, and what is recorded does not depend on the time."""

from __future__ import annotations

import agent_cases
import failing_cases
import loop_cases
import money_cases
import process_cases
import team_cases
import token_cases
from table import CASES, PARTS

__all__ = ["CASES", "MODULES", "PARTS"]

MODULES = (agent_cases, loop_cases, token_cases, money_cases, failing_cases, team_cases, process_cases)
"""They enter their cases when they are imported."""
