"""Folders of the checkout, wherever a test lies."""

import os
from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent


def python_path() -> str:
    """The value of PYTHONPATH with which a program finds the modules of this folder."""
    return os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
