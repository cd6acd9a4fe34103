"""What runs take and give (``trunkline.runs``): options, plans, results, and how a run ends early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.runner.amend import Rescored
    from trunkline.runner.dynamic_sampling import SampledGroups
    from trunkline.runner.options import Options
    from trunkline.runner.preflight import Plan
    from trunkline.runner.result import Run
    from trunkline.runner.run import Interrupted
    from trunkline.store.export.export import Exported
    from trunkline.types import Usage

__all__ = [
    "Exported",
    "Interrupted",
    "Options",
    "Plan",
    "Rescored",
    "Run",
    "SampledGroups",
    "Usage",
]

__getattr__ = exports(
    __name__,
    """
runner.amend: Rescored
runner.dynamic_sampling: SampledGroups
runner.options: Options
runner.preflight: Plan
runner.result: Run
runner.run: Interrupted
store.export.export: Exported
types: Usage
""",
)
