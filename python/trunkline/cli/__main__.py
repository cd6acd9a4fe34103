"""``python -m trunkline.cli``: the command line where no console script is installed."""

from trunkline.cli import main

main()
