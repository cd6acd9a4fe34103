"""What servers say of themselves, read from what they list."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trunkline.llm.config import LLM
from trunkline.llm.http.transport import Answer
from trunkline.llm.servers import ServerFacts, find_facts

PROPS = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4}


@asynccontextmanager
async def listing(models: object, props: object = None, **headers: str):
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer k"
        found = models if request.path == "/v1/models" else props
        if found is None:
            return web.json_response({"error": "no such route"}, status=404, headers=headers)
        return web.json_response(found, headers=headers)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    llm = LLM(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", api_key="k").open()
    try:
        yield llm
    finally:
        await llm.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("entry", "headers", "facts"),
    [
        ({"owned_by": "vllm", "max_model_len": 4096}, {}, ServerFacts(software="vLLM", context=4096)),
        ({"owned_by": "sglang", "max_model_len": 512}, {}, ServerFacts(software="SGLang", context=512)),
        ({"owned_by": "llamacpp"}, {}, ServerFacts(software="llama.cpp", context=2048, slots=4)),
        ({"owned_by": "me"}, {"Server": "llama.cpp"}, ServerFacts(software="llama.cpp", context=2048, slots=4)),
        ({"owned_by": "openai"}, {"x-litellm-version": "1.106"}, ServerFacts(software="LiteLLM")),
        ({"owned_by": "openai", "context_length": 9}, {}, ServerFacts(context=9)),
        ({"owned_by": "vllm", "max_model_len": -1}, {}, ServerFacts()),
        ({"owned_by": "vllm", "max_model_len": True}, {}, ServerFacts()),
    ],
)
async def test_software_and_sizes(entry: dict[str, object], headers: dict[str, str], facts: ServerFacts):
    others = [{"id": "other", "owned_by": "vllm", "max_model_len": 1}]
    async with listing({"data": [*others, entry | {"id": "m"}]}, PROPS, **headers) as llm:
        assert await find_facts(llm, "m") == facts
    async with listing(None, **headers) as llm:
        assert await find_facts(llm, "m") in (ServerFacts(), ServerFacts(software=facts.software))


class Listed:
    def __init__(self, body: bytes) -> None:
        self.body = body

    async def get(self, _route: str) -> Answer:
        return Answer(200, {"Server": "llama.cpp"}, self.body, 0.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.sampled_from(["data", "id", "owned_by", "total_slots"]), some),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | JSON.map(lambda found: repr(found).encode()) | st.just(b"[" * 100_000))
async def test_any_answer_is_read_without_an_error(body: bytes):
    facts = await find_facts(Listed(body), "m")  # type: ignore[arg-type]
    assert facts.software == "llama.cpp"
    assert facts.slots is None or facts.slots > 0
