"""What filters did, counted over rows."""

from __future__ import annotations

from groves import Try, grove

from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.store.derive import rows
from trunkline.store.schema import RolloutRow
from trunkline.store.stats.tasks import Filtered, FilterStats, kept

DROP, MASK = Verdict("f", "drop"), Verdict("f", "mask")


def judged(*said: list[Verdict], rewards: tuple[float, ...] = (1.0, 0.0)) -> list[RolloutRow]:
    """The rows of a group of which this was said."""
    tree = grove([Try([f"t{place}"], reward) for place, reward in enumerate(rewards)])
    for number, listed in enumerate(said):
        notes.note(tree.core, number, *listed)
    return rows(tree.core)[1]


def test_a_group_is_whole_where_one_filter_dropped_all_of_it():
    filter_stats = FilterStats(scored=True)
    groups = [
        judged([DROP], [DROP]),
        judged([DROP]),
        judged([DROP], [Verdict("g", "drop")]),
        judged([DROP, DROP], [DROP]),
    ]
    filter_stats.add(enumerate(groups))
    assert filter_stats.filtered() == [Filtered("f", dropped=6, groups=2), Filtered("g", dropped=1)]
    assert filter_stats.kept == {1}


def test_a_group_is_kept_for_one_rollout_with_an_outcome_that_nothing_took_out():
    nan = float("nan")
    assert kept(None, judged([MASK]), scored=True)
    assert not kept(None, judged([MASK], [MASK]), scored=True)
    assert not kept(None, judged([MASK], rewards=(1.0, nan)), scored=True), "the other has no reward"
    assert kept(None, judged([MASK], rewards=(nan, nan)), scored=False), "which a run without one does not need"
    assert not kept("its worker died", judged(), scored=True)
    assert not kept(None, judged([Verdict("f", "failed")]), scored=True)
    assert not kept(None, [], scored=True)
