"""What whoever writes or uses a team can get wrong, and what they are told."""

from __future__ import annotations

import pytest
from team_scripts import batches, play

from trunkline.errors import ConfigError, UsageError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.runner.run import run
from trunkline.team.builtin import MathTeam
from trunkline.team.projection import Whole
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.types import Task


class Duo(Team):
    """A writer and a reader."""

    writer = Role(prompt="{question} {tone}", slots=("tone",))
    reader = Role(sees=("writer",))

    async def play(self, rollout: TeamPlay) -> str:
        said = await rollout.ask(self.writer, tone="kindly")
        return said + await rollout.ask("reader")


def told(asked: object, **slots: object) -> str:
    """What a rollout ends with whose program asks that."""

    class Asking(Duo):
        async def play(self, rollout: TeamPlay) -> str:
            return await rollout.ask(asked, **slots)

    (tree,) = play(Asking(model="m"), ["What?"], lambda _prompt: "x")
    facts = tree.core.rollout(0)
    assert facts.termination == "lost"
    return str(facts.error)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(
    ("asked", "slots", "message"),
    [
        (MathTeam.solver, {}, "Asking asks a role of another team; its own are writer, reader"),
        ("write", {}, "Asking asks 'write'; its own are writer, reader"),
        (None, {}, "Asking asks None; its own are writer, reader"),
        (Duo.writer, {}, "role writer is asked without a text for its slot 'tone'"),
        (Duo.writer, {"tone": 5}, "slot 'tone' of role writer must be given a text"),
        (Duo.reader, {"mood": "x"}, "role reader has no slot 'mood'; name it in slots="),
    ],
)
def test_a_role_that_cannot_be_asked_so_ends_its_rollout_with_the_reason(
    asked: object, slots: dict[str, object], message: str
) -> None:
    assert message in told(asked, **slots)


class Silent(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "the program raised SystemExit: 3"),
        (GeneratorExit(), "the program raised GeneratorExit: "),
        (BaseException("odd"), "the program raised BaseException: odd"),
        (
            BaseExceptionGroup("all", [KeyboardInterrupt()]),
            "the program raised BaseExceptionGroup: all (1 sub-exception)",
        ),
        (Silent(), "(its message cannot be read)"),
    ],
)
def test_whatever_a_program_raises_ends_its_rollout_alone(error: BaseException, message: str) -> None:
    class Leaving(Duo):
        async def play(self, rollout: TeamPlay) -> str:
            said = await rollout.ask(self.writer, tone="kindly")
            if rollout.question == "Who?":
                raise error
            return said

    left, answered = play(Leaving(model="m"), ["Who?", "What?"], lambda _prompt: "x")
    facts = left.core.rollout(0)
    assert (facts.termination, message in str(facts.error)) == ("lost", True), facts.error
    assert answered.answer == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": 5}, "Role: prompt must be a string, not 5"),
        ({"prompt": "{qestion}"}, "Role: prompt has {qestion}, which is no slot but almost {question}; its slots are"),
        ({"relay": "{nam}: {text}"}, "Role: relay has {nam}, which is no slot but almost {name}"),
        ({"relay": 5}, "Role: relay must be a string, not 5"),
        ({"slots": "tone"}, "Role: slots must be a list of names, not 'tone'"),
        ({"slots": ("step",)}, "Role: slots has step, which every prompt has"),
        ({"slots": ("active",)}, "Role: slots has active, which ask takes for something else"),
        ({"slots": ("a-b",)}, "Role: slots must be names such as history, not 'a-b'"),
        ({"sees": (5,)}, "Role: sees must be a list of names of roles, not (5,)"),
        ({"tools": 5}, "Role: tools must be a list of tools, functions with @tool, not 5"),
        ({"tools": [len]}, "Role: tools must be a list of tools, functions with @tool, not [<built-in"),
        ({"sampling": {"temperature": 1}}, "Role: sampling must be a Sampling, not {'temperature': 1}"),
        ({"reads": "all"}, "Role: reads must have read(text, reasoning), which 'all' lacks"),
        ({"penalty": -1}, "Role: penalty must be a number of at least 0, not -1"),
        ({"prompt": None, "system": "x"}, "Role: one without a prompt is sent the rollout's path"),
    ],
)
def test_a_role_that_cannot_be_is_refused_where_it_is_written(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        Role(**options)
    assert str(problem.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": 5}, "roles must be fields by roles, such as {'writer': {'model': 'large'}}"),
        ({"roles": {"author": {}}}, "roles has 'author'; the roles of Duo are writer, reader"),
        ({"roles": {"writer": "large"}}, "roles: writer must be fields, such as {'model': 'large'}, not 'large'"),
        ({"roles": {"writer": {"modle": "x"}}}, "roles: writer has 'modle', which is none of prompt, system, sees"),
        ({"roles": {"writer": {"slots": ()}}}, "roles: writer: slots belongs to the team's code"),
        ({"roles": {"writer": {"reads": Whole()}}}, "roles: writer: reads belongs to the team's code"),
        ({"roles": {"writer": {"dialect": 5}}}, "roles: writer: dialect must be a name here"),
        ({"roles": {"writer": {"penalty": "x"}}}, "roles: writer: Role: penalty must be a number"),
        ({"roles": {"writer": {"sampling": {"heat": 1}}}}, "roles: writer: Object contains unknown field `heat`"),
        ({"roles": {"reader": {"sees": ["author"]}}}, "role reader sees 'author'; the roles of Duo are writer, reader"),
        ({"model": 5}, "model must be a string, not 5"),
        ({"max_turns": 0}, "max_turns must be a whole number of at least 1, not 0"),
        ({"max_context_length": -1}, "max_context_length must be a whole number of at least 0, not -1"),
        ({"late_join": 1}, "late_join must be true or false, not 1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_where_the_team_is_made(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        Duo(**options)
    assert str(problem.value).startswith(message)


def test_a_team_without_a_program_or_with_one_that_is_no_coroutine_is_refused() -> None:
    class Silent(Team):
        one = Role()

    class Plain(Silent):
        def play(self, rollout: TeamPlay) -> str:
            return "x"

    with pytest.raises(ConfigError, match="Silent has no program: give it  async def play"):
        Silent(model="m")
    with pytest.raises(ConfigError, match="play of Plain must be a coroutine:  async def play"):
        Plain(model="m")


def test_a_team_without_roles_or_with_one_twice_is_refused() -> None:
    class Nobody(Team):
        async def play(self, rollout: TeamPlay) -> None: ...

    class Twice(Nobody):
        one = Role()
        other = one

    class Namesakes(Nobody):
        one = Role()
        other = Role(name="one")

    with pytest.raises(ConfigError, match="Nobody has no roles: give the class attributes that are Roles, unannotated"):
        Nobody(model="m")
    with pytest.raises(ConfigError, match="other of Twice is a role that it has already"):
        Twice(model="m")
    with pytest.raises(ConfigError, match="two roles of Namesakes are called 'one'"):
        Namesakes(model="m")


def test_a_role_cannot_have_the_name_of_what_every_team_has() -> None:
    class Bureau(Team):
        agent = Role()

        async def play(self, rollout: TeamPlay) -> None: ...

    class Office(Team):
        clerk = Role(name="agent")

        async def play(self, rollout: TeamPlay) -> str:
            return await rollout.ask("agent")

    with pytest.raises(ConfigError, match=r"agent is something that every team has.*name='agent'"):
        Bureau(model="m")
    (tree,) = play(Office(model="m"), ["What?"], lambda _prompt: "x")
    assert tree.answer == "x"


def test_a_setting_that_could_not_be_given_is_refused() -> None:
    class Fixed(Duo):
        max_turns = 5

    class Blurred(Duo):
        third: Role = Role()

    with pytest.raises(ConfigError, match="max_turns of Fixed is a setting: annotate it"):
        Fixed(model="m")
    with pytest.raises(ConfigError, match="third of Blurred is annotated, and so a setting: roles are unannotated"):
        Blurred(model="m")


def test_a_mistake_that_is_found_where_a_role_gets_its_model_names_the_role() -> None:
    with pytest.raises(ConfigError, match="role 'writer': Agent: model must be a string, not 5"):
        run(
            Duo(model="m", roles={"writer": {"model": 5}}),
            [Task.ask("What?", id="q")],
            llm=batches(lambda _prompt: "x"),
        )


def test_a_team_without_a_model_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="role 'writer' has no model: give the team one, or the role its own"):
        run(Duo(), [Task.ask("What?", id="q")], llm=batches(lambda _prompt: "x"))


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": "x"},
        {"role": "tool", "content": "x", "tool_call_id": "a"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}]},
    ],
)
def test_a_task_whose_last_message_is_no_text_of_the_user_is_refused_before_the_run(last: dict[str, object]) -> None:
    task = Task(id="t", messages=[{"role": "user", "content": "What?"}, last])
    with pytest.raises(UsageError, match="task 't': its last message must be a text of the user"):
        run(Duo(model="m"), [task], llm=batches(lambda _prompt: "x"))


def test_roles_that_are_sent_the_path_need_no_question() -> None:
    class Onward(Team):
        one = Role(prompt=None)

        async def play(self, rollout: TeamPlay) -> str:
            return await rollout.ask(self.one)

    task = Task(id="t", messages=[{"role": "user", "content": "What?"}, {"role": "assistant", "content": "Hm"}])
    sent: list[list[dict[str, object]]] = []
    (tree,) = run(Onward(model="m"), [task], llm=_recording(sent), seed=1)
    assert tree.core.rollout(0).termination == "answer"
    assert sent == [task.messages]


def test_earlier_messages_of_a_task_are_sent_as_they_are_and_a_question_in_parts_is_a_text() -> None:
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]
    task = Task(id="t", messages=[{"role": "system", "content": "S"}, {"role": "user", "content": parts}])
    sent: list[list[dict[str, object]]] = []
    (tree,) = run(Duo(model="m"), [task], llm=_recording(sent), seed=1)
    assert tree.core.rollout(0).termination == "answer"
    assert sent[0] == [{"role": "system", "content": "S"}, {"role": "user", "content": "What now? kindly"}]


def _recording(sent: list[list[dict[str, object]]]) -> BatchLLM:
    def generate(prompts: list[object]) -> list[str]:
        sent.extend(prompt.messages for prompt in prompts)
        return ["x"] * len(prompts)

    return BatchLLM(generate)


def test_a_role_sees_only_the_roles_that_it_names() -> None:
    class Trio(Duo):
        third = Role(prompt="{context}", sees=("reader",))

        async def play(self, rollout: TeamPlay) -> str:
            await rollout.ask(self.writer, tone="kindly")
            await rollout.ask(self.reader)
            return await rollout.ask(self.third)

    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return f"reply {len(prompts)}"

    play(Trio(model="m"), ["What?"], script)
    assert prompts[1:] == [
        'What?\n\nThe output of "writer": reply 1\n',
        '\nThe output of "reader": reply 2\n',
    ]
