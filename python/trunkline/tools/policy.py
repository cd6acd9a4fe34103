"""How the calls of a tool are run: for how long, how many at once, where, and whether again."""

from __future__ import annotations

from typing import Final

import msgspec

from trunkline.bounds import number, shown, size, whole
from trunkline.errors import ConfigError

__all__ = ["MEMORY", "Policy", "policy"]

MEMORY: Final = 4_000_000_000
"""Bytes that an isolated tool may use unless it says otherwise."""

_LEAST: Final = 1_000_000
"""Bytes below which no call would come to its end."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are run; see :func:`trunkline.tools.tool.tool`."""

    timeout: float | None = None
    concurrency: int | None = None
    isolated: bool = False
    memory: int | None = None
    pure: bool = False
    side_effects: bool = False
    replay: bool = True

    def fits(self, tool: str, *, stateful: bool) -> None:
        """Check that the options fit one another and the tool.

        Args:
            tool: Its name.
            stateful: Whether it takes an environment.

        Raises:
            ConfigError: They do not; the message says which, and why.
        """
        if stateful and self.isolated:
            raise ConfigError(
                f"tool {tool!r}: isolated=True runs it in a process of its own, which cannot reach the environment "
                "of a rollout; drop one of the two"
            )
        if stateful and self.pure:
            raise ConfigError(
                f"tool {tool!r}: pure=True says that equal arguments give equal results, and those of a tool with an "
                "environment depend on its state; drop one of the two"
            )
        if self.pure and self.side_effects:
            raise ConfigError(
                f"tool {tool!r}: pure=True lets calls share one result, and side_effects=True says that each call "
                "counts; drop one of the two"
            )
        if self.memory is not None and not self.isolated:
            raise ConfigError(
                f"tool {tool!r}: memory limits the process of an isolated tool; set isolated=True, or drop it"
            )


def policy(
    tool: str,
    *,
    timeout: float | None,
    concurrency: int | None,
    isolated: bool,
    memory: int | str | None,
    pure: bool,
    side_effects: bool,
    replay: bool,
) -> Policy:
    """Check the options of a tool.

    Args:
        tool: The tool's name.
        timeout: Seconds.
        concurrency: Calls at once.
        isolated: Whether it runs in processes of its own.
        memory: Bytes, or a text such as ``512MB``.
        pure: Whether calls share results.
        side_effects: Whether a call in doubt must not run again.
        replay: Whether a recorded call may run again.

    Raises:
        ConfigError: One of them has a value it cannot have.
    """
    if timeout is not None:
        number(f"tool {tool!r}: timeout", timeout, 0, above=True, unit="seconds")
    if concurrency is not None:
        whole(f"tool {tool!r}: concurrency", concurrency, 1)
    switches = {"isolated": isolated, "pure": pure, "side_effects": side_effects, "replay": replay}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigError(f"tool {tool!r}: {name} must be true or false, not {shown(value)}")
    return Policy(
        timeout=timeout,
        concurrency=concurrency,
        isolated=isolated,
        memory=None if memory is None else size(f"tool {tool!r}: memory", memory, _LEAST),
        pure=pure,
        side_effects=side_effects,
        # What must not run twice does not run again to bring an environment anywhere, either.
        replay=replay and not side_effects,
    )
