"""A chat-completion stub of a few microseconds a call: one tool call, then the answer. It prints its URL."""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

CALL = {
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": '{"key":"answer"}'}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 180, "completion_tokens": 22, "total_tokens": 202},
}
ANSWER = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "<answer>42</answer>"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 240, "completion_tokens": 9, "total_tokens": 249},
}


def reply(body: object) -> bytes:
    """Encode a whole HTTP response."""
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    return head + data


CALLED, ANSWERED = reply(CALL), reply(ANSWER)


class Stub(asyncio.Protocol):
    """Answers whole requests as soon as they are there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            self.transport.write(ANSWERED if b'"role":"tool"' in body else CALLED)


async def main() -> None:
    """Serve until standard input ends."""
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
