"""A place with files in which commands run, and the tools that a model works in it with."""

from __future__ import annotations

from typing import Any, Final

from trunkline.tools.environment import Environment
from trunkline.tools.tool import Tool, tool

_LONGEST: Final = 86_400.0
"""Seconds after which a call is stopped for certain; a workspace has a limit of its own below."""

_MOST: Final = 100_000
"""Bytes of a command or a path; a system refuses longer arguments."""


class Workspace(Environment):
    """Files of one rollout, and commands that run among them: what containers and sandboxes have in common.

    Tools and rewards of your own may take it: annotate a parameter with it, and await its methods.
    """

    async def run(self, command: str) -> str:
        """Run a shell command.

        Args:
            command: Text for the shell.

        Returns:
            What it printed, both streams in order; then how it ended, unless with exit code 0. Bytes that are no UTF-8
            are replaced, and what is beyond the limit is left out.

        Raises:
            ValueError: The command is too long, or contains a NUL character.
            RuntimeError: The workspace does not work.
        """
        raise NotImplementedError

    async def read_file(self, path: str) -> str:
        """Return the text of a file, up to the limit of output.

        Args:
            path: Where it is, seen from the working folder.

        Raises:
            ValueError: The path is empty, too long, or contains a NUL character.
            RuntimeError: It cannot be read, or the workspace does not work.
        """
        raise NotImplementedError

    async def write_file(self, path: str, content: str) -> None:
        """Write a file, and make the folders that it needs.

        Args:
            path: Where it is, seen from the working folder.
            content: Its text.

        Raises:
            ValueError: The path is empty, too long, or contains a NUL character.
            RuntimeError: It cannot be written, or the workspace does not work.
        """
        raise NotImplementedError


@tool(timeout=_LONGEST)
async def run(command: str, workspace: Workspace) -> str:
    """Run a shell command in the workspace, and return what it prints.

    Args:
        command: The command; files of earlier commands are still there.
        workspace: That of the rollout.
    """
    return await workspace.run(command)


@tool(timeout=_LONGEST)
async def read_file(path: str, workspace: Workspace) -> str:
    """Return the text of a file in the workspace.

    Args:
        path: Path of the file, relative to the working folder.
        workspace: That of the rollout.
    """
    return await workspace.read_file(path)


@tool(timeout=_LONGEST)
async def write_file(path: str, content: str, workspace: Workspace) -> str:
    """Write a text file in the workspace; its folders are made, and a file that is there is replaced.

    Args:
        path: Path of the file, relative to the working folder.
        content: The whole text of the file.
        workspace: That of the rollout.
    """
    await workspace.write_file(path, content)
    return "written"


TOOLS: Final[list[Tool[..., Any]]] = [run, read_file, write_file]


def argument(what: str, text: str) -> bytes:
    """Return a model's text as an argument of a process; ValueError where it can be none."""
    data = text.encode("utf-8", "replace")
    if not data or b"\0" in data or len(data) > _MOST:
        raise ValueError(f"{what} must have 1 to {_MOST:,} bytes and no NUL character; this one has {len(data):,}")
    return data


def report(output: bytes, most: int, ending: str = "") -> str:
    """Return what a command printed, up to a limit, and how it ended where that is to be said."""
    text = output[:most].decode("utf-8", "replace")
    if len(output) > most:
        text += f"\n[output beyond {most:,} bytes is left out]"
    return "\n".join([*[text.removesuffix("\n")] * bool(text), f"[{ending}]"]) if ending else text
