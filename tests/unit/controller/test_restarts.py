"""When workers are started again, and who is seen to hang."""

from __future__ import annotations

import logging

import pytest

from trunkline.controller.supervisor import HeartbeatMonitor, RestartPolicy


def lives(restarts: RestartPolicy, deaths: int, **death: bool) -> list[float | None]:
    """Let worker after worker die in one place; returns what was said each time."""
    said = []
    restarts.began(0)
    for worker_id in range(deaths):
        said.append(restarts.died(worker_id, **death))
        if said[-1] is None:
            break
        restarts.began(worker_id + 1, worker_id)
    return said


def test_a_place_is_filled_again_later_and_later_and_then_given_up():
    assert lives(RestartPolicy(), 9) == [0.0, 0.1, 0.2, 0.4, None]


def test_a_death_that_a_task_explains_is_not_held_against_the_place():
    assert lives(RestartPolicy(), 50, known=True) == [0.0] * 50


def test_whatever_gets_into_the_run_file_sets_a_place_right():
    restarts = RestartPolicy()
    restarts.began(0)
    for worker_id in range(100):
        assert restarts.died(worker_id) == 0.0
        restarts.began(worker_id + 1, worker_id)
        restarts.progress(worker_id + 1)
    restarts.progress(3)  # one that is long gone


def test_one_place_says_nothing_of_another():
    restarts = RestartPolicy()
    restarts.began(99)
    lives(restarts, 3)
    assert restarts.died(99) == 0.0


def test_who_does_not_answer_is_warned_of_once_and_then_hangs(caplog: pytest.LogCaptureFixture):
    pulse = HeartbeatMonitor()
    with caplog.at_level(logging.WARNING):
        hung = []
        for _ in range(31):
            hung.append(pulse.beat([1, 2]))
            pulse.seen(2)
    assert hung == [{}] * 30 + [{1: 30.0}]
    assert [record.getMessage() for record in caplog.records] == [
        "worker 1 has not answered for 5 s: something blocks its event loop"
    ]
