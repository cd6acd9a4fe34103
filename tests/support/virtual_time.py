"""A clock that a test turns: minutes of waiting pass in no time, in the order in which they would."""

import asyncio
import heapq
import itertools
import json

from trunkline.llm.http.transport import Answer, TransportError

REPLY = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 50, "completion_tokens": 50},
    }
).encode()


class VirtualTime:
    def __init__(self):
        self.now = 0.0
        self._sleepers = []
        self._numbers = itertools.count()

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        assert seconds >= 0
        due = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), due))
        await due

    def later(self, seconds, function, *args):
        """What ``call_later`` of a loop is."""

        async def call():
            await self.sleep(seconds)
            function(*args)

        return asyncio.ensure_future(call())

    async def settle(self):
        """Let everything run that can, at this moment."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        while loop._ready:
            await asyncio.sleep(0)

    async def until(self, moment):
        """Let time pass up to a moment."""
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= moment:
            self.now, _, due = heapq.heappop(self._sleepers)
            if not due.done():
                due.set_result(None)
                await self.settle()
        self.now = max(self.now, moment)

    async def run(self, *awaitables):
        """Run to the end; return results or exceptions, in order."""
        tasks = [asyncio.ensure_future(each) for each in awaitables]
        await self.settle()
        while not all(task.done() for task in tasks):
            assert self._sleepers, "everybody waits, and nobody for the time"
            await self.until(self._sleepers[0][0])
        return await asyncio.gather(*tasks, return_exceptions=True)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while anything can run, and jumps to the next timer when nothing can."""

    def __init__(self):
        super().__init__()
        self._now = 0.0

    def time(self):
        return self._now

    def _run_once(self):
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()


class VirtualServers:
    """A transport to servers that take their time by the virtual clock.

    Args:
        time: The clock.
        answer: (host, number of this request) -> a status, (status, headers), (status, headers, body) or an exception.
        latency: Seconds of any answer.
    """

    def __init__(self, time, answer=lambda url, number: 200, latency=1.0):
        self.time = time
        self.answer = answer
        self.latency = latency
        self.seen = []
        self.flying = {}
        self.most = {}
        self.peak = 0

    async def post(self, url, headers, body, limit):
        number = len(self.seen)
        host = url.split("/")[2]
        self.seen.append((self.time.now, host, headers))
        self.flying[host] = self.flying.get(host, 0) + 1
        self.most[host] = max(self.most.get(host, 0), self.flying[host])
        self.peak = max(self.peak, sum(self.flying.values()))
        try:
            answer = self.answer(host, number)
            await self.time.sleep(min(self.latency, limit))
        finally:
            self.flying[host] -= 1
        if isinstance(answer, Exception):
            raise answer
        status, told, *body = answer if isinstance(answer, tuple) else (answer, {})
        return Answer(status, told, *(body or [REPLY if status == 200 else b""]), self.latency)

    async def close(self):
        pass

    def times(self, host=None):
        return [moment for moment, where, _ in self.seen if host in {None, where}]


def failing(message="boom", status=500):
    """A server that is up and fails at this request."""
    return status, {}, json.dumps({"error": {"message": message, "code": status}}).encode()


def refused():
    return TransportError("no connection (Connection refused)", unreachable=True)
