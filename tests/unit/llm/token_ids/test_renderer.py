"""Renderers: whole conversations, and what follows a model's turn, for templates of several kinds."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import chat_templates
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_server import CLOSE, encode, llama_server, template
from tokenizers import Tokenizer

from trunkline.errors import ConfigError, LLMError
from trunkline.llm.config import LLM
from trunkline.llm.messages import call_id
from trunkline.llm.token_ids.base import ConversationRenderer, Renderer
from trunkline.llm.token_ids.renderers import ChatTemplate, LocalRenderer, ServerRenderer, tokens_with
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.server.app import start_server

NAMES = tuple(chat_templates.SOURCES)
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
text = st.text(st.characters(codec="utf-8", exclude_characters="<|[]>"), min_size=1, max_size=30).map(
    lambda words: f"x{words}x"
)


@pytest.fixture(scope="module", params=NAMES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, LocalRenderer, Tokenizer]:
    folder = chat_templates.write(request.param, tmp_path_factory.mktemp(request.param))
    return request.param, LocalRenderer(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


def user(said: str) -> dict:
    return {"role": "user", "content": said}


def assistant(said: str) -> dict:
    return {"role": "assistant", "content": said}


@given(question=text, said=text, again=text, cut=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_prompt_turn_and_what_follows_are_the_whole_conversation(model, question, said, again, cut):
    name, renderer, tokenizer = model
    prompt = await renderer.render([user(question)])
    sampled = tokenizer.encode(said, add_special_tokens=False).ids
    if not cut:
        sampled.append(tokenizer.token_to_id(chat_templates.ENDS[name]))
    more = await renderer.extend(sampled, [user(again)])
    assert prompt + sampled + more == await renderer.render([user(question), assistant(said), user(again)])


@given(said=st.lists(text, min_size=1, max_size=3))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_tool_results_follow_a_turn_that_called_for_them(model, said):
    name, renderer, tokenizer = model
    calls = [
        {"id": call_id(0, i), "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}
        for i in range(len(said))
    ]
    results = [{"role": "tool", "tool_call_id": call_id(0, i), "content": each} for i, each in enumerate(said)]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    before = await renderer.render([user("x"), turn, *results])
    end = tokenizer.token_to_id(chat_templates.ENDS[name])
    more = await renderer.extend([5, 6, 7, end], results)
    assert before[len(before) - len(more) :] == more
    assert before[len(before) - len(more) - 1] == end, "it begins right behind the token that ended the turn"


async def test_tools_are_part_of_a_prompt(tmp_path: Path):
    renderer = LocalRenderer(chat_templates.write("chatml", tmp_path))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    shown = tokenizer.decode(await renderer.render([user("x")], [TOOL]), skip_special_tokens=False)
    assert json.dumps(TOOL) in shown
    assert json.dumps(TOOL) not in tokenizer.decode(await renderer.render([user("x")]), skip_special_tokens=False)


async def test_a_template_may_stand_beside_the_tokenizer_or_be_given(tmp_path: Path):
    folder = chat_templates.write("chatml", tmp_path)
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    given_one = await LocalRenderer(folder / "tokenizer.json", own).render([user("abc")])
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).decode(given_one) == "abc"
    (tmp_path / "chat_template.jinja").write_text("-{{ messages[0].content }}-")
    beside = await LocalRenderer(folder).render([user("abc")])
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).decode(beside) == "-abc-"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_hostile_template_reaches_nothing(source: str):
    with pytest.raises(ConfigError, match="does not take this conversation"):
        ChatTemplate(source, {}).text([user("x")], (), opened=True)


def test_what_a_template_says_is_shown_escaped():
    template = ChatTemplate("{{ raise_exception('no \\x1b[31m here') }}", {})
    with pytest.raises(ConfigError) as caught:
        template.text([user("x")], (), opened=True)
    assert "\x1b" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is no file"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is no tokenizer.json"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("["), "is no tokenizer configuration"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{}"), "there is no chat template"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "there is no chat template"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, break_it, says: str):
    folder = chat_templates.write("chatml", tmp_path)
    break_it(folder)
    with pytest.raises(ConfigError, match=says):
        LocalRenderer(folder)


async def test_a_limit_that_a_tokenizer_was_saved_with_cuts_no_prompt(tmp_path: Path):
    folder = chat_templates.write("chatml", tmp_path)
    file = str(folder / "tokenizer.json")
    whole = await LocalRenderer(folder).render([user("one two three four five")])
    tokenizer = Tokenizer.from_file(file)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=99)
    tokenizer.save(file)
    assert await LocalRenderer(folder).render([user("one two three four five")]) == whole


def test_json_is_written_as_templates_ask_for_it():
    source = "{{ messages | tojson(ensure_ascii=False) }} {{ tools | tojson(separators=(',', ':'), sort_keys=True) }}"
    text = ChatTemplate(source, {}).text([user("ü")], [{"b": 1, "a": "ü"}], opened=True)
    assert text == '[{"role": "user", "content": "ü"}] [{"a":"ü","b":1}]'


@given(said=text)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_ids_are_read_with_the_special_tokens_among_them(model, said):
    name, renderer, tokenizer = model
    end = chat_templates.ENDS[name]
    ids = tokenizer.encode(said, add_special_tokens=False).ids
    assert await renderer.decode([*ids, tokenizer.token_to_id(end)]) == tokenizer.decode(ids) + end
    with pytest.raises(ConfigError, match="does not decode these ids"):
        await renderer.decode([-1])


async def test_an_answer_that_is_no_text_is_an_error_that_names_another_way():
    async def post(route: str, body: bytes, key: int = 0) -> bytes:
        return b'{"prompt": 7}'

    with pytest.raises(LLMError, match=r"TokenMode\(tokenizer"):
        await ServerRenderer(post, "m").decode([1])


def test_tokens_are_found_by_the_words_in_them(tmp_path: Path):
    folder = chat_templates.write("chatml", tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = chat_templates.ENDS["chatml"]
    assert tokens_with(folder, end) == (tokenizer.token_to_id(end),)
    every = tokens_with(folder / "tokenizer.json", "e")
    assert every == tuple(sorted(i for i in tokenizer.get_vocab().values() if "e" in tokenizer.decode([i], False)))
    assert set(every) < set(tokens_with(folder, "e", "t"))
    assert tokens_with(folder, "no such word at all") == tokens_with(folder) == ()
    with pytest.raises(ConfigError, match="a word is empty"):
        tokens_with(folder, "")


async def test_a_server_renders_as_it_does_for_a_chat():
    server = await start_server()
    llm = LLM(server.base_url, max_retries=0).open()
    try:
        renderer = ServerRenderer(llm.call, "sim-agent")
        assert isinstance(renderer, Renderer)
        bpe = default_bpe()
        talk = [user("who?"), assistant("the one\nwho asks"), user("so?")]
        prompt = await renderer.render(talk[:1], [TOOL])
        sampled = [*bpe.encode("the one\nwho asks"), bpe.special["<|im_end|>"]]
        for end in (sampled, sampled[:-1]):
            assert prompt + end + await renderer.extend(end, talk[2:]) == await renderer.render(talk, [TOOL])
        assert await renderer.text("abc") == bpe.encode("abc")
        assert await renderer.decode(sampled) == "the one\nwho asks<|im_end|>"
        with pytest.raises(ConfigError, match="does not decode"):
            await renderer.decode([2**31])
        with pytest.raises(ConfigError, match="does not tokenize"):
            await renderer.render([{"role": "nobody", "content": "x"}])
    finally:
        await llm.close()
        await server.stop()


async def plainly(messages: list[dict], *, opened: bool, last: str, calls: str) -> list[int]:
    """A template of its own: how it closes the last turn, and those with calls; tools answer calls alone."""
    written = ""
    for place, message in enumerate(messages):
        if message["role"] == "tool" and "tool_calls" not in messages[place - 1]:
            raise ConfigError("no call")
        if message["role"] != "assistant":
            written += f"<{message['content']}>"
        elif "tool_calls" in message:
            written += message["tool_calls"][-1]["function"]["arguments"] + calls
        else:
            written += message["content"] + (last if place == len(messages) - 1 else ".")
    return list((written + ("[" if opened else "")).encode())


class Plain(ConversationRenderer):
    """Renders with :func:`plainly`."""

    def __init__(self, last: str, calls: str) -> None:
        super().__init__()
        self._render = partial(plainly, last=last, calls=calls)  # type: ignore[method-assign]


async def test_a_template_that_closes_turns_in_several_ways_is_refused_not_guessed():
    answer, more = {"role": "tool", "content": "found"}, [user("more")]
    alike = Plain(last=".", calls=".")
    assert bytes(await alike.extend(b"said", more)) == b".<more>["
    assert bytes(await alike.extend(b"said", [answer])) == b".<found>["
    with pytest.raises(ConfigError, match="closes a turn with tool calls in a way of its own"):
        await Plain(last=".", calls="!").extend(b"said", [answer])
    with pytest.raises(ConfigError, match="writes an assistant's message anew"):
        await Plain(last=";", calls=".").extend(b"said", more)


@pytest.mark.parametrize(
    "answer", [b'{"count": 3}', b'{"tokens": [-1]}', b'{"tokens": [4294967296]}', b'{"tokens": [0.5]}', b"\xff", b""]
)
async def test_an_answer_without_ids_ends_the_rollout_alone(answer: bytes):
    async def post(route: str, body: bytes, key: int = 0) -> bytes:
        return answer

    with pytest.raises(LLMError, match="no list of token ids"):
        await ServerRenderer(post, "m").render([user("x")])


async def test_a_server_that_writes_and_encodes_in_two_steps_renders_as_it_does_for_a_chat():
    async with llama_server() as server:
        llm = LLM(server.url, max_retries=0).open()
        try:
            renderer = ServerRenderer(llm.call, "m")
            talk = [user("who?"), assistant("the one<|op"), user("so?")]
            prompt = await renderer.render(talk[:1])
            assert prompt == encode(template(talk[:1], opened=True))
            sampled = [*encode("the one<|op"), CLOSE]
            for end in (sampled, sampled[:-1]):
                assert prompt + end + await renderer.extend(end, talk[2:]) == encode(template(talk, opened=True))
            assert await renderer.text("abc") == list(b"abc")
            assert await renderer.decode(sampled) == "the one<|op<|close|>"
        finally:
            await llm.close()
