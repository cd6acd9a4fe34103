"""How much memory there is, and how much of it is held."""

from __future__ import annotations

import mmap
import resource

from trunkline._internal.resources import machine_memory, resident, worker_share


def test_what_a_process_holds_is_counted_in_bytes():
    before = resident()
    # Memory of its own: what Python allocates may have been held before.
    with mmap.mmap(-1, 64 << 20) as held:
        held[:] = b"x" * len(held)
        assert resident() - before > 48 << 20
    assert resident() <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (16 << 20)


def test_workers_share_four_fifths_of_the_machine():
    assert resident() < machine_memory()
    assert worker_share(4) * 4 <= 0.8 * machine_memory() < worker_share(1) + 1
