"""Stands for the command line of Docker: containers are folders, and commands run in them by the shell of this machine.

It takes the options that the library uses, as they are documented, and refuses all others with exit code 125. Images
are folders, too; ``broken`` cannot be found, ``slow`` is made for ever, and one named ``frail`` does not start. Each
call is a line of ``calls``, as JSON.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STATE = Path(os.environ.get("FAKE_DOCKER", ""))
CONTAINERS, IMAGES = STATE / "containers", STATE / "images"

CREATE = [
    "--init", "--label", "--network", "--memory", "--memory-swap", "--pids-limit", "--security-opt", "--name", "--cpus",
    "--entrypoint",
]  # fmt: skip


def fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def options(words: list[str], known: list[str]) -> tuple[dict[str, str], list[str]]:
    found = {}
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if name not in known:
            fail(f"unknown flag: {name}", 125)
        found[name] = value
    return found, words


def folder_of(image: str) -> str:
    return image.replace("/", "@").replace(":", "@")


def container(name: str, *, running: bool = False) -> Path:
    folder = CONTAINERS / name
    if not folder.exists():
        fail(f"Error response from daemon: No such container: {name}")
    if running and not (folder / "running").exists():
        fail(f"Error response from daemon: container {name} is not running")
    return folder


def create(words: list[str]) -> None:
    given, (image, *command) = options(words, CREATE)
    assert command
    assert given["--entrypoint"] == "sleep", "the images have no process of their own"
    if image == "broken":
        fail("Unable to find image 'broken:latest' locally\nError response from daemon: pull access denied", 125)
    if image == "slow":
        time.sleep(3600)
    folder = CONTAINERS / given["--name"]
    folder.mkdir(parents=True)
    (folder / "options").write_text(json.dumps(given | {"image": image}))
    source = IMAGES / folder_of(image)
    if source.exists():
        shutil.copytree(source, folder / "files", symlinks=True)
    else:
        (folder / "files").mkdir()
    print("f" * 64)


def start(words: list[str]) -> None:
    folder = container(words[0])
    if json.loads((folder / "options").read_text())["image"] == "frail":
        fail("Error response from daemon: failed to create task: \x1b[31mno\xff".encode().decode("latin1"))
    (folder / "running").touch()
    # Podman leaves a process beside each container, which keeps what it inherits but its three streams.
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    beside = subprocess.Popen(["sleep", "10000"], close_fds=False, start_new_session=True, **nothing)
    (folder / f"process-{beside.pid}").touch()
    print(words[0])


def execute(words: list[str]) -> None:
    given, (name, *command) = options(words, ["--interactive", "--workdir", "--user"])
    folder = container(name, running=True)
    stdin = None if "--interactive" in given else subprocess.DEVNULL
    child = subprocess.Popen(command, cwd=folder / "files", stdin=stdin, start_new_session=True)
    (folder / f"process-{child.pid}").touch()
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)


def restart(words: list[str]) -> None:
    assert words[:2] == ["-t", "0"]
    end(words[2])
    start(words[2:])


def end(name: str) -> None:
    folder = container(name)
    for one in folder.glob("process-*"):
        with suppress(ProcessLookupError):
            os.killpg(int(one.name.partition("-")[2]), signal.SIGKILL)
        one.unlink()
    (folder / "running").unlink(missing_ok=True)


def remove(words: list[str]) -> None:
    _, names = options(words, ["--force", "--volumes"])
    for name in names:
        folder = CONTAINERS / name
        if folder.exists():
            end(name)
            shutil.rmtree(folder)


def inspect(words: list[str]) -> None:
    given, (name,) = options(words, ["--format"])
    assert given["--format"] == "{{.State.Running}}"
    print("true" if (container(name) / "running").exists() else "false")


def commit(words: list[str]) -> None:
    name, image = words
    shutil.copytree(container(name) / "files", IMAGES / folder_of(image), symlinks=True)


def remove_images(words: list[str]) -> None:
    _, names = options(words, ["--force"])
    for name in names:
        shutil.rmtree(IMAGES / folder_of(name), ignore_errors=True)


def main() -> None:
    verb, *words = sys.argv[1:]
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps([verb, *words]) + "\n")
    verbs = {
        "create": create, "start": start, "exec": execute, "restart": restart, "rm": remove, "inspect": inspect,
        "commit": commit, "rmi": remove_images,
    }  # fmt: skip
    verbs[verb](words)


if __name__ == "__main__":
    main()
