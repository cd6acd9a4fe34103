"""Sampling parameters on the command line: ``--set`` and ``--stop``, of one agent and of roles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from commands import trunkline
from foreign import capital_cities, serving
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.options import json_or_text, read_sampling
from trunkline.errors import ConfigError
from trunkline.llm.request import Sampling

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
FIELDS = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "max_tokens": st.integers(1, 99),
    "stop": st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3),
    "presence_penalty": st.floats(-2, 2),
    "logprobs": st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=FIELDS), st.dictionaries(st.sampled_from(["top_k", "min_p"]), JSON))
def test_what_is_set_is_what_sampling_holds(fields: dict, extra: dict):
    texts = [f"sampling.{name}={json.dumps(value)}" for name, value in (fields | extra).items()]
    made, meant = Sampling(**read_sampling(texts)), Sampling(**fields, extra=extra)
    assert msgspec.json.encode(made) == msgspec.json.encode(meant)
    assert read_sampling([text.replace("top_k", "extra.top_k") for text in texts]) == read_sampling(texts)


@given(st.text(max_size=8))
def test_a_value_is_json_or_the_text_itself(text: str):
    try:
        meant = json.loads(text, parse_constant=lambda _name: text)
    except ValueError:
        meant = text
    assert json_or_text(text) == meant
    stop = tuple(meant) if isinstance(meant, list) else (meant if isinstance(meant, str) else text,)
    assert read_sampling([f"sampling.stop={text}"]) == {"stop": stop}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["sampling.temprature=1"], "'temprature' is no sampling parameter (did you mean temperature?)"),
        (["sampling.topk=1"], "(did you mean top_k?); a field of the request's body with another name is written"),
        (["sampling.temperature=hot"], "--set sampling.temperature must be a number or none, not 'hot'"),
        (["sampling.top_k=1", "sampling.extra.top_k=2"], "sampling.extra.top_k is given twice"),
        (["sampling.top-p=1", "sampling.top_p=1"], "sampling.top_p is given twice"),
        (["temperature=1"], "write sampling.NAME=VALUE, for example --set sampling.top_k=20"),
        (["sampling.top_k"], "write sampling.NAME=VALUE"),
        (["sampling.extra={}"], "'extra' is no sampling parameter"),
    ],
)
def test_what_cannot_be_set_is_named(texts: list[str], words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_sampling(texts)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    (tmp_path / "q.jsonl").write_text('{"text": "Capital of France?", "gold": "Paris"}\n')
    return tmp_path


OPTIONS = ("run", "q.jsonl", "-m", "m", "-w", 0, "--tools", "atlas:lookup", "--field", "question=text,answer=gold")


def test_they_are_sent(questions: Path):
    with serving(capital_cities) as server:
        done = trunkline(
            questions, *OPTIONS, "--base-url", server.url, "--stop", "END", "--stop", "a/b",
            "--set", "sampling.top-k=20", "--set", "sampling.extra.own=text",
            "--set", "sampling.top_logprobs=3", "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        body = server.bodies[0]
    assert json.loads(done.stdout)["accuracy"]["value"] == 1.0
    sent = {name: body[name] for name in ("stop", "top_k", "own", "logprobs", "top_logprobs")}
    assert sent == {"stop": ["END", "a/b"], "top_k": 20, "own": "text", "logprobs": True, "top_logprobs": 3}


def test_roles_have_them_too(questions: Path):
    done = trunkline(
        questions, *OPTIONS[:6], "--field", "question=text", "--team", "pair_team:Pair", "--set", "sampling.top_k=20",
        "--set", "sampling.min_p=0.1", "--stop", "END", "--role", "solver.sampling.top_k=5", "--dry-run", "--json",
        "--base-url", "http://127.0.0.1:9/v1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    roles = json.loads(done.stdout)["settings"]["team"]["roles"]
    assert roles["solver"]["sampling"]["extra"] == {"top_k": 5, "min_p": 0.1}
    assert roles["checker"]["sampling"]["extra"] == {"top_k": 20, "min_p": 0.1}
    assert roles["checker"]["sampling"]["stop"] == ["END"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--temperature", 1, "--set", "sampling.temperature=0.5"],
            "--temperature and --set sampling.temperature are one",
        ),
        (
            ["--temperature", 0, "--set", "sampling.temperature=1"],
            "--temperature and --set sampling.temperature are one",
        ),
        (["--stop", "a", "--set", "sampling.stop=b"], "--stop and --set sampling.stop are one setting"),
        (["--set", "sampling.top_p=7"], "sampling.top_p must be a number above 0 and at most 1, not 7"),
        (["--set", "sampling.extra.model=x"], "sampling.extra must not hold 'model'"),
        (["--set", "sampling.extra.api_key=x"], "use api_key_env or headers"),
        (["--set", "sampling.extra.Authorization=Bearer x"], "use api_key_env or headers"),
        (["--stop", ""], "sampling.stop[0] is empty"),
    ],
)
def test_mistakes_are_one_line(options: list[object], words: str, questions: Path):
    done = trunkline(questions, *OPTIONS, "--base-url", "http://127.0.0.1:9/v1", *options)
    assert done.returncode == 2
    assert words in done.stderr
