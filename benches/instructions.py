"""Instructions of a model call, the kernel's apart: `python benches/instructions.py [LOAD] [CLIENT ...]` prints them.

Valgrind counts those of a client's process (`peers.client`; no worker's) in two lengths; the difference is divided by
the calls that the longer one has more, so that start-up is left out. No other load of the machine moves them. It takes
a minute a client.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import Stub
from peers.client import CLIENTS
from peers.loads import LOADS

LANES = 64
CALLS = (128, 640)
"""Calls of the two lengths."""


def a_call(stub: Stub, client: str, load: str = "small") -> float:
    """Instructions of a call; not a number where there is no valgrind.

    Args:
        stub: The server.
        client: A client that needs no worker: a name of :data:`peers.client.CLIENTS`.
        load: A name of :data:`peers.loads.LOADS`.
    """
    if shutil.which("valgrind") is None:
        return float("nan")
    short, long = (_counted(stub, client, load, calls // LOADS[load].turns) for calls in CALLS)
    return (long - short) / (CALLS[1] - CALLS[0])


def _counted(stub: Stub, client: str, load: str, conversations: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", "peers.client"]
    command += [client, load, stub.url, str(conversations), str(LANES), "unchecked"]
    # Sets and dicts of text have the same order in both lengths.
    environment = os.environ | stub.environment | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, input="\n", capture_output=True, text=True, check=True
    )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def main(load: str = "small", *clients: str) -> None:
    """Print instructions of a call of each client."""
    with Stub() as stub:
        for client in clients or ("aiohttp + msgspec", "trunkline, inline"):
            if client not in CLIENTS:
                raise SystemExit(f"{client!r} is no client; there are {', '.join(CLIENTS)}")
            print(f"{a_call(stub, client, load):12,.0f}  {load}  {client}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
