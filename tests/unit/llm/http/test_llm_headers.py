"""Headers of the user's: they win over ours whatever their case, and their values are as secret as the key."""

import msgspec
import pytest
from virtual_time import REPLY

from trunkline.errors import EndpointError, TrunklineError
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.outcome import Backoff
from trunkline.llm.http.transport import Answer
from trunkline.llm.types import Request

REQUEST = Request(b'{"model":"m","messages":[]}', 7)
SECRET = "vault-0123456789abcdef"


class Echo:
    """A transport that remembers the headers, and answers with a status and all their values."""

    def __init__(self, status=200):
        self.status = status
        self.seen = []

    async def post(self, url, headers, body, limit):
        self.seen.append(dict(headers))
        said = REPLY if self.status == 200 else msgspec.json.encode({"error": {"message": "you sent " + repr(headers)}})
        return Answer(self.status, {}, said, 0.0)

    async def close(self):
        pass


@pytest.mark.parametrize(
    "theirs",
    [
        {"authorization": "Basic abc"},
        {"CONTENT-TYPE": "application/json; charset=utf-8"},
        {"x-session-id": "mine"},
        {"X-SMG-ROUTING-KEY": "mine", "Authorization": "x"},
    ],
)
async def test_headers_of_the_user_win_in_any_case(theirs):
    echo = Echo()
    await HttpLLM(["http://h/v1"], "sk-key", headers=theirs, transport=echo).complete(REQUEST)
    (sent,) = echo.seen
    assert sent.items() >= theirs.items()
    names = [name.lower() for name in sent]
    assert sorted(names) == ["authorization", "content-type", "x-session-id", "x-smg-routing-key"]


async def test_ours_are_sent_where_the_user_has_none():
    echo = Echo()
    await HttpLLM(["http://h/v1"], "sk-key", headers={"X-A": "b"}, transport=echo).complete(REQUEST)
    assert echo.seen == [
        {
            "Content-Type": "application/json",
            "Authorization": "Bearer sk-key",
            "X-A": "b",
            "X-Session-ID": "00000007",
            "X-SMG-Routing-Key": "00000007",
        }
    ]


@pytest.mark.parametrize("headers", [{"api-key": SECRET}, {"Authorization": f"Token {SECRET}"}])
@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_header_that_a_server_echoes_is_in_no_error(headers, status):
    llm = HttpLLM(
        ["http://h/v1"], "sk-key-0123456", headers=headers, transport=Echo(status), backoff=Backoff(attempts=1)
    )
    with pytest.raises(TrunklineError) as caught:
        await llm.complete(REQUEST)
    assert SECRET not in str(caught.value)
    assert "sk-key-0123456" not in str(caught.value)
    assert "[key]" in str(caught.value)


async def test_of_two_secrets_the_longer_one_goes_first():
    llm = HttpLLM(["http://h/v1"], SECRET, headers={"api-key": SECRET + "-and-more"}, transport=Echo(401))
    with pytest.raises(EndpointError) as caught:
        await llm.complete(REQUEST)
    assert "and-more" not in str(caught.value)
