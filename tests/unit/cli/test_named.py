"""Options of the form NAME:OPTION=VALUE,...: what they make, and what is said where they cannot."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import pytest

from trunkline._internal.registry import Registry
from trunkline.cli.run import _strategy
from trunkline.cli.targets import changed_llms, read_llms
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.strategies import STRATEGIES
from trunkline.strategies.base import Strategy
from trunkline.strategies.chain import Chain
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.strategies.tree_search import TreeSearch


class Word(enum.Enum):
    LEFT = "left"


class Plain:
    """A class as users write them, without a struct."""

    def __init__(self, width: int = 2, *, name: str = "x", ratio: float | None = 0.5, word: Word = Word.LEFT) -> None:
        self.given = (width, name, ratio, word)


@dataclass
class Data:
    sizes: tuple[int, ...] = ()
    on: bool = False


class Unhinted:
    def __init__(self, size, **rest: Any) -> None:
        self.given = (size, rest)


class Lost:
    def __init__(self, size: NoSuchType = 1) -> None:  # noqa: F821 - a name that leads nowhere
        self.size = size


class Raising:
    def __init__(self, size: int = 1) -> None:
        raise RuntimeError("\x1b[31mnot today")


READY = Chain(3)


def made(text: str) -> Any:
    return STRATEGIES.make(text, "--strategy")


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_of_the_catalog_is_there_and_says_how_many_it_makes(name: str):
    strategy = made(name)
    assert isinstance(strategy, Strategy)
    assert strategy.rollouts() >= 1
    assert str(strategy.rollouts()) in strategy.formula()


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("chain", Chain()),
        ("chain:n=4", Chain(4)),
        ("chain:n=3, temperatures=0.6/1", Chain(3, temperatures=(0.6, 1.0))),
        ("chain:n=3,temperatures=0.6", Chain(3, temperatures=(0.6,))),
        ("chain:n=3,avoid=true", Chain(3, avoid=True)),
        ("tree-grpo:trees=3,keep=none", TreeGRPO(trees=3)),
        ("tree-search:value=math:floor", TreeSearch(value=math.floor)),
        ("mcts:c=2,value=math:floor,bound=ucb1", MCTS(c=2, value=math.floor, bound="ucb1")),
    ],
)
def test_options_are_read_into_the_types_of_the_fields(text: str, strategy: Strategy):
    assert made(text) == strategy


def test_ones_own_classes_are_made_from_their_constructors():
    assert made("test_named:Plain").given == (2, "x", 0.5, Word.LEFT)
    assert made("test_named:Plain:width=3,name=none,ratio=none,word=left").given == (3, "none", None, Word.LEFT)
    assert made("test_named:Data:sizes=1/2,on=true") == Data((1, 2), True)
    assert made("test_named:Unhinted:size=7").given == ("7", {}), "text, where nobody says what it is"
    assert made("test_named:Lost:size=7").size == "7"
    assert made("test_named:READY") is READY


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "tree-grop",
            (
                r"'tree-grop' is none of adaptive, .*tree-grpo.* \(did you mean tree-grpo\?\); "
                "your own is written module:Class"
            ),
        ),
        ("tree-grop:trees=2", "'tree-grop' is none of adaptive"),
        ("", "is none of adaptive"),
        ("m:", "is none of adaptive"),
        ("tree-grpo:tress=2", "'tress=2' is no option=value that it knows; its options are trees, forks, rounds, keep"),
        ("tree-grpo:trees", "'trees' is no option=value"),
        ("tree-grpo:trees=2,", "'' is no option=value"),
        ("tree-grpo:trees=two", "--strategy tree-grpo: trees must be a whole number, not 'two'"),
        ("tree-grpo:trees=1.5", "trees must be a whole number, not '1.5'"),
        ("tree-grpo:trees=none", "trees must be a whole number, not 'none'"),
        ("tree-grpo:trees=0", "--strategy tree-grpo: TreeGRPO: trees must be a whole number from 1 to 1048576, not 0"),
        ("tree-grpo:keep=all", "keep must be a whole number or none, not 'all'"),
        ("tree-grpo:keep=4", "keep must be at most what a tree gets"),
        ("chain:n=3,temperatures=a/b", "temperatures must be a number, or several between slashes, not 'a/b'"),
        ("chain:avoid=yes", "avoid must be true or false, not 'yes'"),
        ("chain:n=2,n=3", "option n is given twice"),
        ("mcts:bound=puct", "--strategy mcts: bound must be uct or ucb1, not 'puct'"),
        ("tree-search:value=math:nothing", "'math' has no 'nothing'"),
        ("tree-search:value=no_such_module:f", "cannot import 'no_such_module'"),
        ("tree-search:value=math:pi", "value must be a function, written module:name or none, not 'math:pi'"),
        ("no_such_module:Class", "cannot import 'no_such_module'"),
        ("test_named:Nothing:n=1", "'test_named' has no 'Nothing'"),
        ("test_named:READY:n=1", "test_named:READY is no class, so it takes no options"),
        ("test_named:Unhinted", "test_named:Unhinted needs size: --strategy test_named:Unhinted:size="),
        ("test_named:Unhinted:rest=1", "its options are size$"),
        ("test_named:Raising", r"RuntimeError: \\x1b\[31mnot today"),
    ],
)
def test_what_cannot_be_made_is_one_clear_error(text: str, says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        made(text)
    assert "\n" not in str(caught.value)


def test_a_registry_imports_an_entry_when_it_is_used_and_names_what_is_unknown():
    there = Registry("shape", {"disc": "no_such_module:Disc", "box": "test_named:Plain", "dot": float}, {"dot": int})
    assert (str(there), len(there), "box" in there, "bax" in there) == ("disc, box, dot", 3, True, False)
    assert there["box"]().given == (2, "x", 0.5, Word.LEFT)
    assert (there.find("dot"), there.find("dot", options=True)) == (float, int)
    with pytest.raises(ConfigError, match="shape disc cannot be imported: No module named 'no_such_module'"):
        there["disc"]
    with pytest.raises(ConfigError, match=r"shape: 'bax' is none of disc, box, dot \(did you mean box\?\)$"):
        there.find("bax")
    with pytest.raises(KeyError):
        there["bax"]


def test_rollouts_is_for_chains_alone():
    assert _strategy("chain", n=None) == Chain(1)
    assert _strategy("chain", n=4) == Chain(4)
    assert _strategy("chain", n=4, wave=2) == Chain(4, wave=2)
    assert _strategy("chain:avoid=true", n=4) == Chain(4, avoid=True)
    with pytest.raises(ConfigError, match="--rollouts 4 and --strategy 'chain:n=2' say the same thing"):
        _strategy("chain:n=2", n=4)
    with pytest.raises(ConfigError, match="--rollouts 4 is for chains; --strategy 'tree-grpo' itself says"):
        _strategy("tree-grpo", n=4)
    with pytest.raises(ConfigError, match=r"dict has no rollouts\(\) and start"):
        _strategy("builtins:dict")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("foo=1", "'foo=1' is no option=value that it knows; there is api_key_env"),
        ("rpm=1,rpm=2", "option rpm is given twice"),
        ("timeout=x", "timeout must be a number, not 'x'"),
        ("prompt=x", "price: prompt must be a number, not 'x'"),
        ("rpm=-1", "limits.requests_per_minute (--rpm) must be a number above 0, not -1.0"),
    ],
)
def test_a_wrong_option_of_an_llm_names_the_llm_once(option: str, said: str):
    given = [f"fast=http://localhost:1/v1,{option}"]
    with pytest.raises(ConfigError) as of_run:
        read_llms(given, {})
    with pytest.raises(ConfigError) as of_resume:
        changed_llms({"fast": LLM("http://localhost:1/v1")}, given)
    assert str(of_run.value).startswith(f"--llm fast: {said}")
    assert str(of_resume.value).startswith(f"--llm fast: {said}")
