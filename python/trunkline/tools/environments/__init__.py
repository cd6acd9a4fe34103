"""Environments that are ready to use: a container and a sandbox, with tools for commands and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.tools.environments.container import Container
    from trunkline.tools.environments.sandbox import SandboxSettings as Sandbox
    from trunkline.tools.environments.workspace import Workspace, read_file, run, write_file

__all__ = ["Container", "Sandbox", "Workspace", "read_file", "run", "write_file"]

__getattr__ = exports(
    __name__,
    """
tools.environments.container: Container
tools.environments.sandbox: Sandbox=SandboxSettings
tools.environments.workspace: Workspace read_file run write_file
""",
)
