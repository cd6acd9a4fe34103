"""Another way to work on the active rows of a batch, in numpy.

``extract`` and ``restore`` do what the masked generation of Dr.MAS
does (`langfengQ/DrMAS`, commit 19c632b, `verl/protocol.py`), on a batch of named columns: row 0 stands in where nothing
is active, idle rows come back as copies of the first active row, and the order is made in a loop over all rows.
"""

from __future__ import annotations

import numpy as np

Batch = dict[str, np.ndarray]


def extract(batch: Batch, active: np.ndarray) -> Batch:
    """The active rows, or row 0 if there is none."""
    index = np.flatnonzero(active)
    if not len(index):
        index = np.zeros(1, np.int64)
    return {name: column[index] for name, column in batch.items()}


def restore(done: Batch, active: np.ndarray) -> Batch:
    """Rows for all lanes, copies of the first active one in the idle ones."""
    index = np.flatnonzero(active).tolist()
    idle = [lane for lane in range(len(active)) if not active[lane]]
    filled = {name: np.concatenate([column, np.repeat(column[:1], len(idle), axis=0)]) for name, column in done.items()}
    place = {lane: row for row, lane in enumerate(index + idle)}
    order = [place[lane] for lane in range(len(active))]
    return {name: column[order] for name, column in filled.items()}
