"""Which snapshots of a tree are kept, and which of them a rollout gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trunkline.rollout.environments import SnapshotCache

# One rollout has one snapshot for each number of turns.
puts = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 12)), max_size=25, unique_by=lambda put: put[:2]
)


def kept(most: int, most_bytes: int, rounds: list[list[tuple[int, int, int]]]) -> dict[tuple[int, int, int], int]:
    """The uses whose snapshots are kept, with their sizes."""
    snapshots = SnapshotCache(most, most_bytes)
    for listed in rounds:
        snapshots.next_round()
        for rollout, turns, size in listed:
            snapshots.put(100 * rollout + turns, rollout, turns, bytes(size))
            assert len(snapshots) <= most
            assert snapshots.size <= most_bytes
    found = {use: held.size for use, held in snapshots._kept.items()}
    assert snapshots.size == sum(found.values())
    return found


@given(first=puts, second=puts, most=st.integers(0, 8), most_bytes=st.integers(0, 40), data=st.data())
def test_what_is_kept_does_not_depend_on_who_was_faster(first, second, most, most_bytes, data):
    shuffled = [data.draw(st.permutations(first)), data.draw(st.permutations(second))]
    found = kept(most, most_bytes, [first, second])
    assert found == kept(most, most_bytes, shuffled)
    # The naive rule: from the last use backwards, as long as there is room; what never fits is not looked at.
    uses = sorted(((number, *put) for number, listed in enumerate([first, second], 1) for put in listed), reverse=True)
    naive: dict[tuple[int, int, int], int] = {}
    for number, rollout, turns, size in uses:
        if size > most_bytes:
            continue
        if len(naive) == most or sum(naive.values()) + size > most_bytes:
            break
        naive[number, rollout, turns] = size
    assert found == naive


def test_the_last_state_on_the_path_counts_and_there_the_first_rollout():
    snapshots = SnapshotCache(9, 9)
    snapshots.put(4, 2, 1, "second at 4")
    snapshots.put(4, 1, 1, "first at 4")
    snapshots.put(6, 2, 2, "at 6")
    assert snapshots.find([1, 2, 3], 5) is None
    assert snapshots.find([1, 2, 3, 4, 5], 5).snapshot == "first at 4"
    assert snapshots.find([1, 2, 3, 4, 5, 6, 7], 6).snapshot == "at 6"
    assert snapshots.find([1, 2, 3, 4, 5], 7).snapshot == "first at 4", "used before, and by somebody else"


def test_the_least_recently_used_is_dropped():
    snapshots = SnapshotCache(2, 9)
    snapshots.put(4, 0, 1, "old")
    snapshots.put(5, 0, 2, "new")
    snapshots.next_round()
    assert snapshots.find([4], 1).snapshot == "old"
    snapshots.put(8, 1, 2, "newest")
    assert snapshots.find([5], 2) is None
    assert snapshots.find([4], 2).snapshot == "old"
