"""Which endpoint a tree goes to, and router and limiter together against a naive model."""

import asyncio
import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from virtual_time import VirtualTime

from trunkline.errors import LLMError
from trunkline.llm.http.outcome import Outcome
from trunkline.llm.limits.adaptive_window import Window
from trunkline.llm.limits.rate_limiter import Limiter
from trunkline.llm.limits.router import Endpoint, Router
from trunkline.llm.limits.token_bucket import ServerRateLimits
from trunkline.llm.types import Routing

DOWN = Outcome(LLMError, "down", retry=True, status=503)


def endpoints(count, cap=100, base="http://h{}/v1"):
    return [Endpoint(base.format(i), "KEY", "", Window(cap, adaptive=False), ServerRateLimits()) for i in range(count)]


def router(places, time=None, **settings):
    time = time or VirtualTime()
    return Router(places, Routing(**settings), sleep=time.sleep, draw=lambda: 0.5, clock=time)


def test_new_trees_go_to_the_least_loaded_and_stay_there():
    places = endpoints(3)
    route = router(places)
    homes = {}
    for key in range(9):
        homes[key] = route.choose(key)
        homes[key].queue.in_flight += 1
    assert [place.load for place in places] == [3, 3, 3]
    assert all(route.choose(key) is homes[key] for key in range(9))


def test_equals_are_tried_from_the_key_on():
    assert [router(endpoints(3)).choose(key).target("")[0] for key in (0, 1, 2, 4)] == [
        "http://h0/v1",
        "http://h1/v1",
        "http://h2/v1",
        "http://h1/v1",
    ]


def test_a_tree_leaves_an_endpoint_that_is_crowded_beyond_the_margin_and_stays_away():
    places = endpoints(2)
    route = router(places, margin=5)
    assert route.choose(0) is places[0]
    places[0].queue.in_flight = 8
    places[1].queue.in_flight = 3
    assert route.choose(0) is places[0]
    places[0].queue.waiting = 1
    assert route.choose(0) is places[1]
    places[0].queue.in_flight = places[0].queue.waiting = 0
    assert route.choose(0) is places[1]


def test_only_so_many_trees_are_remembered_and_the_idle_ones_are_forgotten():
    places = endpoints(2)
    route = router(places, memory=3)
    for key in (0, 1, 2):
        route.choose(key)
    route.choose(0)
    route.choose(3)
    assert list(route._affinity) == [2, 0, 3]


def test_a_repeated_request_goes_elsewhere_and_its_tree_does_not_move():
    places = endpoints(2)
    route = router(places)
    assert route.choose(0) is places[0]
    assert route.choose(0, avoid=places[0]) is places[1]
    assert route.choose(0) is places[0]
    assert router(places[:1]).choose(0, avoid=places[0]) is places[0]


def test_more_failures_in_a_row_are_needed_where_a_crowd_is_in_flight():
    for crowd, needed in ((1, 3), (8, 4), (64, 11)):
        (place,) = endpoints(1)
        route = router([place])
        place.queue.in_flight = crowd
        for failure in range(needed):
            assert not place.ejected, failure
            route.failed(place, DOWN, probe=False)
        assert place.ejected
        assert route.choose(0) is None


def test_what_fails_late_after_an_ejection_is_no_news():
    (place,) = endpoints(1)
    route = router([place])
    for _ in range(3):
        route.failed(place, DOWN, probe=False)
    until = place.until
    for _ in range(10):
        route.failed(place, DOWN, probe=False)
    assert (place.until, place.ejections) == (until, 1)


async def test_who_waits_for_an_endpoint_goes_before_who_comes_later():
    time = VirtualTime()
    (place,) = endpoints(1)
    route = router([place], time)
    route.paused(place, DOWN, 5.0)
    order = []

    async def wait(name):
        await route.wait(0, 100.0)
        order.append(name)

    waiting = [asyncio.create_task(wait(name)) for name in range(3)]
    await time.settle()
    time.now = 6.0
    assert route.choose(0) is None
    await time.run(*waiting)
    assert order == [0, 1, 2]
    assert route.choose(0) is place


async def test_of_two_slots_that_are_freed_at_once_none_goes_to_who_comes_later():
    (place,) = endpoints(1)
    limiter, time = Limiter(2), VirtualTime()
    assert limiter.enter(place.queue)
    assert limiter.enter(place.queue)
    waiting = [asyncio.create_task(limiter.wait(place.queue, 0)) for _ in range(2)]
    await time.settle()
    limiter.leave(place.queue)
    limiter.leave(place.queue)
    assert not limiter.enter(place.queue)
    assert await asyncio.gather(*waiting) == [True, True]


async def test_who_is_held_waits_until_it_is_cancelled():
    (place,) = endpoints(1)
    limiter, time = Limiter(2), VirtualTime()
    assert limiter.enter(place.queue)
    limiter.hold()
    assert not limiter.enter(place.queue)
    waiting = asyncio.create_task(limiter.wait(place.queue, 0))
    await time.settle()
    limiter.leave(place.queue)
    await time.settle()
    assert not waiting.done()
    assert (place.queue.in_flight, place.queue.waiting) == (0, 1)
    waiting.cancel()
    await time.settle()
    assert place.queue.waiting == 0


class Granting:
    def __init__(self):
        self.taken = [0, 0]

    def acquire(self, requests, tokens):
        self.taken[0] += requests
        self.taken[1] += tokens
        return 0.0


async def test_rates_taken_for_a_request_that_is_not_sent_are_given_back():
    (place,) = endpoints(1)
    lease, time = Granting(), VirtualTime()
    limiter = Limiter(1, lease, sleep=time.sleep, clock=time)
    assert await limiter.wait(place.queue, 100)
    waiting = [asyncio.create_task(limiter.wait(place.queue, 50)) for _ in range(2)]
    await time.settle()
    assert lease.taken == [2, 150]
    waiting[0].cancel()
    await time.settle()
    place.queue.close()
    await time.settle()
    assert waiting[1].result() is False
    assert lease.taken == [1, 100]
    limiter.leave(place.queue, 100, 130)
    assert lease.taken == [1, 130]
    assert place.queue.tokens == place.queue.ahead == place.load == 0


async def test_a_probe_does_not_wait_for_what_hangs_at_its_endpoint():
    time = VirtualTime()
    (place,) = endpoints(1, cap=4)
    limiter, route = Limiter(9, clock=time), router([place], time)
    assert all(limiter.enter(place.queue) for _ in range(4))
    for _ in range(4):
        route.failed(place, DOWN, probe=False)
    time.now = 2.0
    assert route.choose(0) is place
    assert await asyncio.wait_for(limiter.wait(place.queue, 0, probe=True), 5)
    assert place.queue.in_flight == 5


def test_a_success_between_failures_starts_the_count_again():
    (place,) = endpoints(1)
    route = router([place])
    for _ in range(5):
        route.failed(place, DOWN, probe=False)
        route.failed(place, DOWN, probe=False)
        route.served(place)
    assert not place.ejected


def test_an_ejected_endpoint_gets_one_probe_and_each_failure_doubles_the_wait():
    time = VirtualTime()
    places = endpoints(2)
    route = router(places, time)
    for _ in range(3):
        route.failed(places[0], DOWN, probe=False)
    waits = []
    for _ in range(7):
        waits.append(places[0].until - time.now)
        assert route.choose(0) is places[1]
        time.now = places[0].until
        assert route.choose(0) is places[0]
        assert route.choose(0) is places[1], "one probe is enough"
        route.failed(places[0], DOWN, probe=True)
    assert waits == pytest.approx([1, 2, 4, 8, 16, 30, 30])
    time.now = places[0].until
    assert route.choose(4) is places[0]
    route.served(places[0])
    assert route.choose(2) is places[0]
    assert route.choose(0) is places[1], "the tree has moved, and so has its prefix"


def test_the_wait_is_jittered():
    spans = set()
    for draw in (0.0, 1.0):
        (place,) = endpoints(1)
        for _ in range(3):
            place.failed(DOWN, probe=False, after=3, now=0.0, draw=draw)
        spans.add(place.until)
    assert spans == {0.75, 1.25}


@pytest.mark.parametrize(
    ("base", "route", "url"),
    [
        ("http://h/v1", "/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/v1", "/completions", "http://h/v1/completions"),
        ("http://h/v1", "//generate", "http://h/generate"),
        ("http://h", "//tokenize", "http://h/tokenize"),
        ("http://h/openai/v1beta", "//tokenize", "http://h/openai/tokenize"),
        ("http://h/models/v1x9/", "/x", "http://h/models/v1x9/x"),
    ],
)
def test_where_a_route_is(base, route, url):
    (place,) = endpoints(1, base=base)
    assert place.target(route)[0] == place.target(route)[1].url == url


class Traffic(RuleBasedStateMachine):
    """Calls that come, end well or badly or are cancelled, at three endpoints under limits."""

    TOTAL, EACH = 5, 3

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.time = VirtualTime()
        self.places = endpoints(3, self.EACH)
        self.limiter = Limiter(self.TOTAL, sleep=self.time.sleep, clock=self.time)
        self.router = router(self.places, self.time, margin=2, memory=4)
        self.tasks, self.flying, self.rows = [], {}, {place: [] for place in self.places}
        self.names = iter(range(10**6))

    async def call(self, name, key):
        while True:
            place = self.router.choose(key) or await self.router.wait(key, math.inf)
            probe = place.ejected
            try:
                if await self.enter(name, place, probe):
                    return await self.fly(name, place, probe)
            finally:
                if probe and place.probing:
                    self.router.released(place)

    async def enter(self, name, place, probe):
        row = self.rows[place]
        if self.limiter.enter(place.queue):
            assert not row, "somebody was overtaken"
            return True
        row.append(name)
        try:
            entered = await self.limiter.wait(place.queue, 0, probe=probe)
            assert not entered or row[0] == name, "somebody was overtaken"
            return entered
        finally:
            row.remove(name)

    async def fly(self, name, place, probe):
        appended = self.loop.create_future()
        self.flying[name] = (place, appended, probe)
        try:
            outcome = await appended
            if outcome == "ok":
                self.router.served(place)
            elif outcome == "pause":
                self.router.served(place)
                self.router.paused(place, DOWN, 3.0)
            else:
                self.router.failed(place, DOWN, probe=probe)
        finally:
            del self.flying[name]
            self.limiter.leave(place.queue)

    def settle(self):
        self.loop.run_until_complete(self.time.settle())
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled():
                task.result()

    @rule(keys=st.lists(st.integers(0, 8), min_size=1, max_size=6))
    def come(self, keys):
        for key in keys:
            self.tasks.append(self.loop.create_task(self.call(next(self.names), key)))
        self.settle()

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "ok", "fail", "fail", "fail", "pause"]))
    def land(self, data, outcome):
        name = data.draw(st.sampled_from(sorted(self.flying)))
        self.flying[name][1].set_result(outcome)
        self.settle()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), and_land=st.booleans())
    def cancel(self, data, and_land):
        """Cancel some, also in the very moment in which a slot is handed over."""
        if and_land and self.flying:
            next(iter(self.flying.values()))[1].set_result("ok")
            self.loop.run_until_complete(asyncio.sleep(0))
        for index in data.draw(st.sets(st.integers(0, len(self.tasks) - 1), min_size=1, max_size=4)):
            self.tasks[index].cancel()
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 40.0]))
    def wait(self, seconds):
        self.loop.run_until_complete(self.time.until(self.time.now + seconds))
        self.settle()

    @invariant()
    def limits_are_kept_and_nothing_is_lost(self):
        for place in self.places:
            there = [probe for where, _, probe in self.flying.values() if where is place]
            assert place.queue.in_flight == len(there) <= self.EACH + sum(there)
            assert place.queue.waiting == len(self.rows[place])
        assert self.limiter.free == self.TOTAL - len(self.flying) >= 0
        assert self.router._closed == sum(place.queue.closed for place in self.places)

    @invariant()
    def nobody_waits_for_what_is_free(self):
        if self.limiter.free:
            for place in self.places:
                assert not (place.queue.waiting and place.queue.in_flight < self.EACH), "a slot is free"
        if not self.router.shut:
            assert self.router._waiting == 0

    def teardown(self):
        for _ in range(1000):
            if not self.tasks:
                break
            for _, appended, _ in list(self.flying.values()):
                appended.set_result("ok")
            self.settle()
            self.wait(40.0)
        assert not self.tasks, "somebody starves"
        self.limits_are_kept_and_nothing_is_lost()
        assert all(place.load == 0 for place in self.places)
        self.loop.close()


Traffic.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestTraffic = Traffic.TestCase
