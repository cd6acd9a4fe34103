"""Token-exact engines of every kind: a tree holds what the model was given and what it said, to the id."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toy_model import ToyEngine, ToyLLM, ToyModel, ToyServer, known

from trunkline.agent import Agent
from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Completion, Prompt
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.runner.run import run
from trunkline.strategies.chain import Chain
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task, Usage


@tool
async def look(what: str) -> str:
    """Look at something.

    Args:
        what: The thing.
    """
    return f"seen {len(what)}"


AGENT = Agent(model="toy", tools=[look], dialect="hermes", max_turns=3, sampling=Sampling(max_tokens=300))
TASKS = [Task.ask(f"what is {number}?", id=f"q{number}") for number in range(3)]


def grow(llm: Any, agent: Agent = AGENT, **options: Any) -> list[Tree]:
    given: dict[str, Any] = {"strategy": TreeGRPO(2, 1, 1), "seed": 3, "workers": 0, **options}
    return sorted(run(agent, TASKS, llm=llm, **given), key=lambda tree: tree.task.id)


def batch(folder: Path, api: str = "completions", **options: Any) -> tuple[ToyModel, Any]:
    engine = ToyEngine(folder, api)
    return engine, BatchLLM(engine, tokens=engine.tokens, **options)


def alone(folder: Path, api: str = "completions", *, takes: bool = False) -> tuple[ToyModel, Any]:
    llm = ToyLLM(folder, api)
    llm.takes = takes
    return llm, llm


KINDS: dict[str, Callable[[Path], tuple[ToyModel, Any]]] = {
    "batch": batch,
    "batch with n": partial(batch, supports_n=True),
    "object": alone,
    "object with a server's answer": partial(alone, takes=True),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], int]:
    """Digests of a run on a server of completions, and how many of them it was asked for."""
    server = ToyServer(tmp_path_factory.mktemp("toy"))
    with server.serving():
        trees = grow(LLM(server.url, tokens=server.tokens, max_retries=0))
    assert set(server.paths) == {"/v1/completions"}, "the probe asks for nothing else"
    assert {pair for tree in trees for pair in known(tree.core)} <= set(server.calls)
    return [tree.digest() for tree in trees], len(set(server.calls))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_engine_grows_the_tree_that_a_server_grows(
    kind: str, served: tuple[list[str], int], tmp_path: Path
):
    model, llm = KINDS[kind](tmp_path)
    trees = grow(llm)
    assert {pair for tree in trees for pair in known(tree.core)} == set(model.calls)
    assert [tree.digest() for tree in trees] == served[0]
    assert served[1] == len(set(model.calls)) + 1, "the probe"
    assert {rollout.termination for tree in trees for rollout in tree.rollouts} == {"answer", "max_turns"}
    for tree in trees:
        tree.core.check()
        assert tree.tokens.exact, "an observation that was never sent does not spoil it"
        assert tree.tokens.flat >= tree.tokens.tree >= tree.tokens.longest > 0


@pytest.mark.parametrize("make", [batch, alone])
def test_an_engine_that_renders_says_what_it_rendered(make: Any, tmp_path: Path):
    model, llm = make(tmp_path, "chat")
    forking = TokenMode(api="chat", drift="fork")
    llm.tokens = forking
    trees = grow(llm)
    assert {pair for tree in trees for pair in known(tree.core)} == set(model.calls)
    assert all(tree.tokens.exact for tree in trees)
    assert sum(tree.usage.forked for tree in trees) > 0


def test_a_batch_engine_goes_on_inside_turns(tmp_path: Path):
    model, llm = batch(tmp_path)
    trees = grow(llm, strategy=EntropyTree(chains=1, points=1, rounds=1, samples=1))
    assert all(len(tree.rollouts) == 2 for tree in trees)
    for tree in trees:
        for prompt, said in known(tree.core):
            assert any(prompt + said == given + sampled for given, sampled in model.calls)


def told(said: Any, tokens: TokenMode) -> str:
    """What the failure of a rollout says where a batch engine says something."""

    def generate(prompts: list[Prompt]) -> list[Any]:
        return [said for _ in prompts]

    (tree,) = run(AGENT, TASKS[:1], llm=BatchLLM(generate, tokens=tokens), strategy=Chain(1), workers=0)
    assert tree.rollouts[0].termination == "llm_error"
    assert not tree.tokens.tree_generated
    return str(tree.rollouts[0].error)


class Array:
    """Values that raise when they are read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def tolist(self) -> list[int]:
        raise self.error


WRONG = [
    *(
        ({"text": "a", "token_ids": Array(kind("torn")), "logprobs": [-1.0]}, "torn")
        for kind in (ValueError, SystemExit)
    ),
    ("text", "no token_ids of what was sampled"),
    ({"text": "a", "token_ids": [], "logprobs": []}, "no token_ids of what was sampled"),
    ({"text": "a", "token_ids": [1, 2]}, "2 token_ids and no logprobs; give one for each id"),
    ({"text": "a", "token_ids": [1, 2], "logprobs": [-1.0]}, "1 logprobs and 2 token_ids"),
    ({"text": "a", "token_ids": [1], "logprobs": [float("nan")]}, "logprobs that are not finite"),
    ({"text": "a", "token_ids": [-1], "logprobs": [-1.0]}, "`int` >= 0 - at `$.token_ids[0]`"),
    ({"text": "a", "token_ids": [2**32], "logprobs": [-1.0]}, "`int` <= 4294967295 - at `$.token_ids[0]`"),
    ({"text": "a", "token_ids": [1.5], "logprobs": [-1.0]}, "Expected `int`, got `float` - at `$.token_ids[0]`"),
]


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(("said", "words"), WRONG)
def test_what_a_batch_engine_lacks_is_named(said: Any, words: str, tmp_path: Path):
    message = told(said, ToyEngine(tmp_path).tokens)
    assert "the batch engine generate returned" in message
    assert words in message


@pytest.mark.breaks_rollouts
def test_a_batch_engine_says_its_own_prompt_and_no_other(tmp_path: Path):
    whole = {"text": "a", "token_ids": [1], "logprobs": [-1.0]}
    assert "no token ids of the prompt" in told(whole, TokenMode())
    other = whole | {"prompt_token_ids": [1, 2]}
    assert "2 prompt_token_ids that are not those of its prompt" in told(other, ToyEngine(tmp_path).tokens)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(("said", "words"), WRONG)
def test_what_an_object_lacks_is_named(said: Any, words: str, tmp_path: Path):
    class Own:
        tokens = ToyEngine(tmp_path).tokens

        async def complete(self, request: Any) -> Reply:
            fields = {"text": said} if isinstance(said, str) else said
            choice = ReplyChoice(fields["text"], None, [], "stop", fields.get("token_ids"), fields.get("logprobs"))
            return Reply([choice], 1, 0, 1, 1, 1)

        async def close(self) -> None: ...

    try:
        (tree,) = run(AGENT, TASKS[:1], llm=Own(), strategy=Chain(1), workers=0)
        message = str(tree.rollouts[0].error)
    except ConfigError as error:
        message = str(error)
    expected, _, place = words.replace("`", "").removeprefix("Expected ").partition(" - at $.")
    assert "Own returned a" in message or "Own.complete() returned a" in message
    assert expected in message
    assert f"choices[0].{place}" in message or not place


def test_tokens_of_an_engine_that_is_sent_ids_are_counted(tmp_path: Path):
    engine = ToyEngine(tmp_path)

    async def generate(prompts: list[Prompt]) -> list[Completion]:
        return [msgspec.structs.replace(one, prompt_token_ids=None) for one in await engine.generate(prompts)]

    trees = grow(BatchLLM(generate, tokens=engine.tokens))
    prompts, said = zip(*engine.calls, strict=True)
    usage = sum((tree.usage for tree in trees), Usage())
    assert (usage.prompt, usage.generated, usage.unreported) == (len(sum(prompts, ())), len(sum(said, ())), 0)


def test_log_probs_that_are_not_known_are_nan_on_the_tree(tmp_path: Path):
    engine = ToyEngine(tmp_path)

    def generate(prompts: list[Prompt]) -> list[Completion]:
        return [Completion(text="yes", token_ids=[5, 6], logprobs=[None, -0.5]) for _ in prompts]

    (tree,) = run(AGENT, TASKS[:1], llm=BatchLLM(generate, tokens=engine.tokens), strategy=Chain(1), workers=0)
    turn = tree.rollouts[0].nodes[-1].id
    assert repr(list(tree.core.tokens_of(turn).logprobs)) == "[nan, -0.5]"
    assert tree.tokens.exact


def test_modes_that_an_engine_cannot_have_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"BatchLLM: tokens: api='completions' needs TokenMode\(tokenizer=...\)"):
        BatchLLM(print, tokens=TokenMode(api="completions"))
    with pytest.raises(ConfigError, match="api='generate' is SGLang's over HTTP"):
        BatchLLM(print, tokens=TokenMode(api="generate", tokenizer=str(tmp_path)))
    with pytest.raises(ConfigError, match="BatchLLM: tokens must be a TokenMode or None, not 'chat'"):
        BatchLLM(print, tokens="chat")
    model, llm = alone(tmp_path)
    llm.tokens = True
    with pytest.raises(ConfigError, match=r"ToyLLM\.tokens must be a TokenMode or None, not True"):
        grow(llm)
    llm.tokens = TokenMode(api="completions", tokenizer=str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="there is no file"):
        grow(llm)
    llm.tokens = TokenMode(api="completions", tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs sampling\.max_tokens"):
        grow(llm, Agent(model="toy"))
    assert model.calls == []


def test_prompts_of_ids_are_read_from_the_body():
    assert Prompt(json.dumps({"prompt": [1, 2]}).encode()).token_ids == [1, 2]
    assert Prompt(json.dumps({"messages": []}).encode()).token_ids is None
