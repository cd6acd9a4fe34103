"""What adapters read of configurations and datasets, without the frameworks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy
import pytest

from trunkline.errors import ArgumentError, ConfigError
from trunkline.train import skyrl, verl
from trunkline.train.adapters.rows import row_task


class Config(dict[str, Any]):
    """A configuration whose sections are attributes."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def configured(**custom: Any) -> Config:
    rollout = Config(custom={"trunkline": {"run": "random:choice", "estimator": "dr_grpo", **custom}})
    algorithm = Config(adv_estimator="trunkline", use_kl_in_reward=False)
    return Config(algorithm=algorithm, actor_rollout_ref=Config(rollout=rollout))


def test_a_task_has_the_answers_of_its_row_and_all_else_as_metadata():
    row = {
        "raw_prompt": numpy.array([{"role": "user", "content": "what?"}], dtype=object),
        "reward_model": {"style": "rule", "ground_truth": numpy.array(["a", "b"])},
        "index": numpy.int64(3),
        "extra": {1: object},
    }
    task = verl.task_of(row, "u")
    assert (task.id, task.messages, task.reference) == ("u", [{"role": "user", "content": "what?"}], ("a", "b"))
    assert task.metadata == {
        "reward_model": {"style": "rule", "ground_truth": ["a", "b"]},
        "index": 3,
        "extra": {"1": str(object)},
    }
    for judged, reference in ((None, ()), ({"ground_truth": 42}, ("42",)), ("x", ()), ({"ground_truth": [None]}, ())):
        assert row_task("u", task.messages, judged, {}).reference == reference
    with pytest.raises(ConfigError, match="a row of verl's dataset has no raw_prompt"):
        verl.task_of({}, "u")


@pytest.mark.parametrize(
    ("custom", "problem"),
    [
        ({"run": None}, "trunkline.run is None: name your function, such as my_rollouts:grow"),
        ({"run": "no_such_module:grow"}, "cannot import 'no_such_module'"),
        ({"estimator": None}, "estimator"),
        ({"estimator": "none"}, "estimator"),
        ({"shared": "sometimes"}, "shared"),
        ({"wrong": 1}, "wrong"),
        ({"whiten": "batch"}, "say whiten='none'"),
        ({"scale": "batch_std"}, "say scale='std'"),
    ],
)
def test_a_wrong_section_of_verls_configuration_is_named(custom: dict[str, Any], problem: str):
    given = {"run": "random:choice", **custom}
    with pytest.raises((ConfigError, ArgumentError), match=problem):
        verl._Section.read(configured(**given), estimator=True)


def test_a_section_has_the_options_of_a_batch():
    section = verl._Section.read(configured(run="random:choice", censored="mask"), estimator=True)
    assert section.options == {"shared": "repeat", "estimator": "dr_grpo", "censored": "mask"}
    # An agent loop has no use for them.
    assert verl._Section.read(configured(run="random:choice", wrong=1), estimator=False).options == {}


def test_settings_of_verl_that_change_advantages_are_refused():
    config = configured()
    verl._check(config, handles=[])
    with pytest.raises(ConfigError, match="colocated reward model would replace advantages"):
        verl._check(config, handles=None)
    for name, value, problem in (
        ("adv_estimator", "grpo", "adv_estimator is 'grpo'"),
        ("use_kl_in_reward", True, "use_kl_in_reward would change advantages"),
    ):
        wrong = Config(config, algorithm=Config(config.algorithm, **{name: value}))
        with pytest.raises(ConfigError, match=problem):
            verl._check(wrong, handles=[])


@pytest.mark.parametrize(("module", "adapter"), [("verl", verl), ("skyrl", skyrl)])
def test_an_adapter_says_what_to_install(module: str, adapter: Any):
    if find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError, match=rf"pip install 'trunkline\[{module}\]'"):
        adapter.register()
