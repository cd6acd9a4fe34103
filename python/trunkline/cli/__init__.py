"""The command line. Commands are imported when they run, so that help answers at once."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script's entry point."""
    from trunkline.cli.app import run_app

    run_app()
