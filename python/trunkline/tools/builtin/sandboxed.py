"""Tools in a sandbox of the rollout: an interpreter that keeps its variables, a shell, and files."""

from __future__ import annotations

from typing import Any, Final

from trunkline.tools.environments.sandbox import SandboxSettings, SandboxWorkspace
from trunkline.tools.environments.workspace import Workspace, read_file, write_file
from trunkline.tools.tool import Tool, tool

_LONGEST: Final = 86_400.0
"""Seconds after which a call is stopped for certain; the sandbox has a limit of its own below."""


@tool(name="python", timeout=_LONGEST)
async def run_python(code: str, sandbox: SandboxWorkspace) -> str:
    """Run Python code, and return what it prints and the value of an expression at its end. Variables are kept.

    Args:
        code: The code. It works in a folder of its own, without a network.
        sandbox: That of the rollout.
    """
    return await sandbox.run_python(code)


@tool(name="shell", timeout=_LONGEST)
async def run_shell(command: str, workspace: Workspace) -> str:
    """Run a shell command, and return what it prints. Files are kept, processes are not.

    Args:
        command: The command, for /bin/sh.
        workspace: That of the rollout.
    """
    return await workspace.run(command)


@tool(timeout=_LONGEST)
async def list_files(sandbox: SandboxWorkspace, path: str = ".") -> str:
    """List a folder and those below it: folders with a slash, files with their size.

    Args:
        sandbox: That of the rollout.
        path: Path of the folder, relative to the working folder.
    """
    return await sandbox.list_files(path)


@tool(timeout=_LONGEST)
async def edit_file(path: str, old: str, new: str, sandbox: SandboxWorkspace) -> str:
    """Replace a text that occurs once in a file.

    Args:
        path: Path of the file, relative to the working folder.
        old: The text that is replaced, with enough around it to occur once.
        new: The text in its place.
        sandbox: That of the rollout.
    """
    await sandbox.edit_file(path, old, new)
    return "edited"


run_python.environment = run_shell.environment = list_files.environment = edit_file.environment = SandboxSettings


def python() -> Tool[..., Any]:
    """Return a tool that runs Python code in an interpreter of the rollout, which keeps its variables.

    It runs in a sandbox (``trunkline.environments.Sandbox``) without a network, which an agent that names no
    environment gets with it; for other limits, or files to begin with, give ``environment=Sandbox(...)``. A rollout
    that forks in the middle has the variables of its fork point: the calls on record run again, and must say what is
    on record, so a fork behind code that prints the time is refused.
    """
    return run_python


def shell() -> Tool[..., Any]:
    """Return a tool that runs shell commands in the rollout's sandbox, container or other workspace.

    An agent that names no environment gets a ``trunkline.environments.Sandbox`` with it. Files last from command
    to command, processes do not.
    """
    return run_shell


def files() -> list[Tool[..., Any]]:
    """Return tools for files of the rollout's sandbox: ``read_file``, ``write_file``, ``list_files`` and ``edit_file``.

    Paths are below the sandbox's working folder: others are refused, links are not followed, and only regular files
    are read and written. ``environment=trunkline.environments.Sandbox(folder="data")`` begins each rollout with a copy
    of a folder.
    """
    return [read_file, write_file, list_files, edit_file]
