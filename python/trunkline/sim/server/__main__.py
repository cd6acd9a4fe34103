"""``python -m trunkline.sim.server``: prints the base URL on one line when it serves.

Slow imports are in ``main``, behind a first answer to signals.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, prog: str = "python -m trunkline.sim.server") -> int:
    """Run the server; returns 0 after a signal, 2 for a wrong option, 3 when the address cannot be bound."""
    from trunkline.errors import TrunklineError  # noqa: PLC0415 - see the module's docstring
    from trunkline.sim.server.options import read_options  # noqa: PLC0415
    from trunkline.sim.server.process import serve  # noqa: PLC0415

    try:
        asked = read_options(sys.argv[1:] if arguments is None else arguments, os.environ, prog)
        serve(asked.settings, host=asked.host, port=asked.port, exit_with_parent=asked.exit_with_parent)
    except TrunklineError as error:
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(error))
        sys.stderr.write(f"error: {text}\n")
        return error.exit_code
    return 0


def _leave_quietly() -> None:
    """Let a signal end the process at once; outside the event loop there is nothing to clean up."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: os._exit(128 + number))


if __name__ == "__main__":
    _leave_quietly()
    code = main()
    _leave_quietly()  # The event loop has put the default answers back, and one of them is a traceback.
    sys.exit(code)
