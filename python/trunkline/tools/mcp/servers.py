"""MCP servers as data that crosses to workers, read from a file in the usual form.

Values of ``env`` and ``headers`` are in no encoding: they stay in memory, cross to workers by ``MCP.secret``, and are
read from their file again when a run is resumed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from trunkline._internal.text import is_secret, printable, redact_command, without_secrets
from trunkline._internal.validation import (
    check_bool,
    check_choice,
    check_that,
    did_you_mean,
    short_repr,
)
from trunkline.errors import ConfigError

EFFECTS: Final = ("none", "folder", "external")
_OF_COMMAND: Final = ("command", "args", "env")
_OF_URL: Final = ("url", "headers")
_OF_BOTH: Final = ("type", "tools", "effects", "stateless")
_TYPES: Final = {"stdio": "command", "http": "url", "streamable-http": "url", "streamable_http": "url"}

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_URL: Final = re.compile(r"https?://[^\s/?#]+[^\s#]*")
_MOST_FILE: Final = 1 << 20  # bytes

_PLAIN_ENV: Final = {"TZ": "UTC", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "NO_COLOR": "1", "DO_NOT_TRACK": "1"}
_INHERITED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")


class ServerSetup(msgspec.Struct, frozen=True):
    """What to start or to ask, with all values filled in: never stored, logged or shown."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    folder: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    timeout: float = 60.0
    secrets: tuple[str, ...] = ()


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server lists it: its name there, its definition for the model, and what it says of itself."""

    name: str
    definition: str
    read_only: bool = False


class MCPServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server as its file has it, with the names of ``env`` and ``headers`` alone."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    names: tuple[str, ...] = ()
    file: str = ""
    folder: str | None = None
    wanted: tuple[str, ...] | None = None
    effects: Literal["none", "folder", "external"] = "external"
    stateless: bool = False
    timeout: float = 60.0
    version: str = ""
    sessions: bool = True
    tools: tuple[ListedTool, ...] = ()

    @property
    def replayed(self) -> bool:
        """Whether its calls run again where a rollout begins in the middle: it has a state, and a rollout its own."""
        return self.sessions and not self.stateless

    @property
    def forks(self) -> str:
        """Why rollouts that call it cannot fork; empty where they can."""
        if self.stateless:
            return ""
        if not self.sessions:
            return (
                f"speaks version {self.version} of the protocol, which knows no sessions: forks would share what it "
                'keeps. Declare it stateless if it keeps nothing (stateless=True, or "stateless": true in the file)'
            )
        if self.effects == "external":
            return (
                "would be called again for a fork: say that it may, effects='none' or 'folder' (--effects), or declare "
                'it stateless (stateless=True, or "stateless": true in the file)'
            )
        return ""

    def settings(self) -> dict[str, Any]:
        """Describe the server for the run file, without a value of ``env`` or ``headers``."""
        return {
            "command": redact_command([*self.command]),
            "url": without_secrets(self.url),
            "names": [*self.names],
            "folder": self.folder,
            "effects": self.effects,
            "stateless": self.stateless,
            "version": self.version,
            "tools": {tool.name: {"says_read_only": tool.read_only} for tool in self.tools},
        }


def read_servers(servers: Any) -> tuple[dict[str, Any], str]:
    """Return servers by their names, and the path of their file."""
    file = ""
    if isinstance(servers, str) and _URL.fullmatch(servers):
        servers = {"server": {"url": servers}}
    if isinstance(servers, str | Path):
        path = Path(servers)
        file, shown = str(path.absolute()), f"MCP: {printable(str(path))}"
        try:
            if path.stat().st_size > _MOST_FILE:
                raise ConfigError(f"{shown} has more than {_MOST_FILE:,} bytes")
            servers = msgspec.json.decode(path.read_bytes())
        except OSError as problem:
            raise ConfigError(f"{shown} cannot be read: {problem.strerror or problem}") from None
        except (ValueError, RecursionError) as problem:
            raise ConfigError(f"{shown} is no JSON: {printable(str(problem), 200)}") from None
        if not isinstance(servers, Mapping) or "mcpServers" not in servers:
            raise ConfigError(f'{shown} must hold {{"mcpServers": {{NAME: {{"command": ...}} or {{"url": ...}}}}}}')
    if not isinstance(servers, Mapping):
        raise ConfigError(f"MCP takes the path of a file, an address or a dict, not {short_repr(servers)}")
    if "mcpServers" in servers:
        for key in servers:
            if key != "mcpServers":
                raise ConfigError(f"MCP: {short_repr(key)} stands beside mcpServers, where nothing else may")
        servers = servers["mcpServers"]
    if not isinstance(servers, Mapping) or not servers:
        raise ConfigError("MCP: mcpServers must be an object with at least one server by its name")
    return dict(servers), file


def read_server(name: Any, given: Any, more: dict[str, Any]) -> tuple[MCPServer, dict[str, str]]:
    """Read one server; return it, and its values of ``env`` or ``headers``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"MCP: a server's name must be 1 to 64 of a-z, A-Z, 0-9, _, . and -, not {short_repr(name)}")
    place = f"MCP server {name}"
    if not isinstance(given, Mapping):
        raise ConfigError(f'{place} must be {{"command": ...}} or {{"url": ...}}, not {short_repr(given)}')
    kind = _kind(place, given)
    values = _texts(place, given, "headers" if kind == "url" else "env")
    fields: dict[str, Any] = {"name": name, "names": tuple(sorted(values))}
    fields |= {key: value for key, value in more.items() if key != "effects"}
    fields[kind] = _address(place, given["url"]) if kind == "url" else _words(place, given)
    if "stateless" in given:
        fields["stateless"] = check_bool(f"{place}: stateless", given["stateless"])
    if "tools" in given:
        wanted = given["tools"]
        fits = isinstance(wanted, list) and wanted and all(isinstance(one, str) for one in wanted)
        check_that(fits, f"{place}: tools must be a list of names of tools", wanted)
        fields["wanted"] = tuple(wanted)
    effects = given.get("effects", more["effects"])
    if effects is not None:
        check_choice(f"{place}: effects", effects, *EFFECTS)
        fields["effects"] = effects
    if fields.get("effects") == "folder" and kind == "url":
        raise ConfigError(f"{place}: effects is 'folder', and a server by its address has no folder here: say none")
    if fields.get("effects") != "folder":
        fields["folder"] = None
    return MCPServer(**fields), values


def _kind(place: str, given: Mapping[str, Any]) -> str:
    """Return ``command`` or ``url``, and refuse keys that do not go with it."""
    kind = "url" if "url" in given else "command"
    known = (*(_OF_URL if kind == "url" else _OF_COMMAND), *_OF_BOTH)
    for key in given:
        if key not in known:
            near = did_you_mean(key, known) if isinstance(key, str) else ""
            raise ConfigError(f"{place}: {short_repr(key)} is no key{near}; with {kind} there are {', '.join(known)}")
    if kind not in given:
        raise ConfigError(f"{place} has neither command nor url: give one")
    if "type" in given and _TYPES.get(given["type"] if isinstance(given["type"], str) else "") != kind:
        raise ConfigError(f"{place}: type is {short_repr(given['type'])}, which does not go with {kind}: leave it out")
    return kind


def _texts(place: str, given: Mapping[str, Any], key: str) -> dict[str, str]:
    """Read ``env`` or ``headers``."""
    found = given.get(key, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{place}: {key} must be an object of texts")
    for name, value in found.items():
        fits = isinstance(name, str) and name and "=" not in name and "\0" not in name
        if not fits or (key == "headers" and not _HEADER.fullmatch(name)):
            raise ConfigError(f"{place}: {key} has the name {short_repr(name)}, which it cannot have")
        if not isinstance(value, str) or "\0" in value or (key == "headers" and not value.isprintable()):
            raise ConfigError(f"{place}: {key}, {printable(name, 60)}: give a printable text")  # it may be a key
    return dict(found)


def _address(place: str, url: Any) -> str:
    fits = isinstance(url, str) and url.isprintable() and _URL.fullmatch(url)
    parts = re.split("(?=[?&])", url) if isinstance(url, str) else []
    if any(without_secrets(part) != part and "${" not in part for part in parts):
        raise ConfigError(f"{place}: its url holds what looks like a key, which would be stored: write ${{NAME}} there")
    check_that(fits, f"{place}: url must be http://... or https://...", url)
    return str(url)


def _words(place: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    command, arguments = given["command"], given.get("args", [])
    check_that(isinstance(command, str) and command and "\0" not in command, f"{place}: command: no text", command)
    fits = isinstance(arguments, list | tuple) and all(isinstance(one, str) and "\0" not in one for one in arguments)
    if not fits:
        raise ConfigError(f"{place}: args must be a list of texts")
    words = [command, *arguments]
    if any(safe != word and "${" not in word for safe, word in zip(redact_command(words), words, strict=True)):
        raise ConfigError(f"{place}: args hold what looks like a key, which would be stored: write ${{NAME}} there")
    return tuple(words)


def fill_in(server: MCPServer, values: Mapping[str, str]) -> ServerSetup:
    """Fill in variables, and the values of ``env`` or ``headers``.

    Raises:
        ConfigError: A variable or a value is missing, or there is no such command.
    """
    place, keys = f"MCP server {server.name}", set[str]()

    def text(value: str, *, secret: bool = False) -> str:
        def value_of(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                raise ConfigError(f"{place}: ${{{found[1]}}} is not set in this environment: set {found[1]}")
            if secret or is_secret(found[1]):
                keys.add(os.environ[found[1]])
            return os.environ[found[1]]

        if "${" in _REFERENCE.sub("", value):
            raise ConfigError(f"{place}: ${{ begins no reference of the form ${{NAME}}")
        return _REFERENCE.sub(value_of, value)

    for name in server.names:
        if name not in values:
            raise ConfigError(
                f"{place}: the value of {printable(name, 60)} is in no file: begin the run again as it was begun, with "
                "resume=True"
            )
    given = {name: text(values[name]) for name in server.names}
    keys.update(value for name, value in given.items() if server.url or is_secret(name))
    command, env = [text(word) for word in server.command], dict[str, str]()
    if command:
        own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        env = {**own, **_PLAIN_ENV, **given}
        if shutil.which(command[0], path=env.get("PATH")) is None:
            raise ConfigError(
                f"{place}: there is no command {short_repr(server.command[0])}: install it, or give its path"
            )
        if server.effects == "folder":
            command = [_whole(word, server.folder, first=not index) for index, word in enumerate(command)]
    url = text(server.url, secret=True)
    words = {word for key in keys for word in (key, *key.split())}
    return ServerSetup(
        command=tuple(command),
        env=env,
        folder=(server.folder or "") if server.effects == "folder" else None,
        url=url,
        headers=given if url else {},
        timeout=server.timeout,
        secrets=tuple(sorted(words, key=len, reverse=True)),
    )


def _whole(word: str, folder: str | None, *, first: bool) -> str:
    """Return the whole path of a file of this directory, as the server runs in another one."""
    if word.startswith("-") or (first and "/" not in word):
        return word
    try:
        there = Path(word).is_file() and not (folder and Path(folder, word).is_file())
    except OSError:
        return word
    return str(Path(word).absolute()) if there else word
